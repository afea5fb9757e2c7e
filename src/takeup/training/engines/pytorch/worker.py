"""A thread that does one thing after the other, and does not keep a process alive whose work has failed."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from threading import Thread
from typing import Any, TypeVar

__all__ = ["Worker"]

Result = TypeVar("Result")
Job = tuple[Future[Any], Callable[[], Any]]


class Worker:
    """Calls what it is given, in order; the thread ends with the worker."""

    def __init__(self, name: str) -> None:
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()
        # A daemon: it may wait for a rank that failed, and must not keep this one from failing too.
        Thread(target=_work, args=(self._jobs,), name=name, daemon=True).start()
        weakref.finalize(self, self._jobs.put, None)

    def submit(self, call: Callable[[], Result]) -> Future[Result]:
        """What the call will return, or raise."""
        future: Future[Result] = Future()
        self._jobs.put((future, call))
        return future


def _work(jobs: SimpleQueue[Job | None]) -> None:
    while (job := jobs.get()) is not None:
        _do(*job)
        del job  # what a call holds is free as soon as it is done


def _do(future: Future[Any], call: Callable[[], Any]) -> None:
    try:
        result = call()
    except BaseException as error:
        future.set_exception(error)
    else:
        future.set_result(result)
