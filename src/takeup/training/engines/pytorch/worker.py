"""A single worker thread with a FIFO queue; a daemon, so it does not keep a failed process alive."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from threading import Thread
from typing import Any, TypeVar

Result = TypeVar("Result")
QueuedCall = tuple[Future[Any], Callable[[], Any]]


class WorkerThread:
    """Runs submitted calls in order; the thread ends when the worker is garbage-collected."""

    def __init__(self, name: str) -> None:
        self._jobs: SimpleQueue[QueuedCall | None] = SimpleQueue()
        # A daemon: it may be blocked on a failed rank, and must not keep this process from exiting.
        Thread(target=_run_queue, args=(self._jobs,), name=name, daemon=True).start()
        weakref.finalize(self, self._jobs.put, None)

    def submit(self, call: Callable[[], Result]) -> Future[Result]:
        """Enqueue the call; the future holds its result or exception."""
        future: Future[Result] = Future()
        self._jobs.put((future, call))
        return future


def _run_queue(jobs: SimpleQueue[QueuedCall | None]) -> None:
    while (job := jobs.get()) is not None:
        _run_call(*job)
        del job  # release what the call references as soon as it is done


def _run_call(future: Future[Any], call: Callable[[], Any]) -> None:
    try:
        result = call()
    except BaseException as error:
        future.set_exception(error)
    else:
        future.set_result(result)
