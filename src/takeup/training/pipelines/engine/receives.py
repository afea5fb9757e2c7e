"""Receives that record when their message arrived, not when it was consumed.

A Gloo receive cannot be polled for completion, only waited for. So in a measured iteration a thread waits for the
messages of one direction in order of arrival, and the consumer waits for that thread. In other iterations the consumer
waits for the message directly, because a thread handoff costs a tenth of a millisecond per message. All waits have a
timeout: a message that does not arrive in time ends the job with an error that names the message.
"""

import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from datetime import timedelta
from functools import partial
from queue import SimpleQueue
from threading import Thread
from typing import Any, Protocol, TypeVar

from takeup.errors import TakeupError

# A single worker thread with a FIFO queue; a daemon, so it does not keep a failed process alive -----------------------

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


Key = tuple[int, int]  # stage and micro-batch


class Waitable(Protocol):
    """A message in flight."""

    def wait(self, timeout: timedelta, /) -> object:
        """Block until it has arrived; raise on failure or timeout."""


def wait_for(works: Sequence[Waitable], timeout: timedelta, what: str) -> None:
    """Wait for messages; on failure or timeout raise an error that names them."""
    try:
        for work in works:
            work.wait(timeout)
    except RuntimeError as error:
        raise TakeupError(
            f"{what} did not come within {timeout.total_seconds():g} s, or its connection closed; "
            f"look whether that rank still runs, and start the job again ({first_words(error)})"
        ) from error


def first_words(error: BaseException) -> str:
    """First line of a Gloo error message, without its advice."""
    return str(error).partition("\n")[0].partition(". This is")[0]


class PendingReceive:
    """All messages of one receive as a single waitable; `finish` returns when they have arrived."""

    def __init__(self, works: Sequence[Waitable], finish: Callable[[], object]) -> None:
        self._works = works
        self._finish = finish

    def wait(self) -> None:
        """Block until the messages have arrived; raise their error, if any."""
        self._finish()
        for work in self._works:
            if land := getattr(work, "land", None):
                land()


class PendingReceives(dict[Key, list[Any]]):
    """Receives by stage and micro-batch, in the form that PyTorch's runtime keeps them.

    While `eager()` is true, a thread waits for messages and calls `note` for each arrival, with its device event if
    there is one. Receives posted by PyTorch itself complete on a device stream without a host wait; `mark_of` gives
    the event of their arrival.
    """

    def __init__(
        self,
        note: Callable[[int, Any], None],
        what: str,
        timeout: timedelta,
        eager: Callable[[], bool] = lambda: True,
        mark_of: Callable[[Sequence[Any]], Any] = lambda works: None,
    ) -> None:
        super().__init__()
        self._note = note
        self._what = what
        self._timeout = timeout
        self._eager = eager
        self._mark_of = mark_of
        self._worker = WorkerThread("takeup-arrivals")
        self._posted: dict[int, Sequence[Waitable]] = {}

    def posted(self, microbatch: int, works: Sequence[Waitable]) -> None:
        """Register receives posted outside PyTorch's runtime, which will have none for this micro-batch."""
        self._posted[microbatch] = works

    def __setitem__(self, key: Key, works: Sequence[Any]) -> None:
        microbatch = key[1]
        if works:
            self._note(microbatch, self._mark_of(works))
            super().__setitem__(key, list(works))
            return
        works = self._posted.pop(microbatch, ())
        finish = partial(wait_for, works, self._timeout, f"{self._what} {microbatch}")
        if self._eager():
            finish = self._worker.submit(partial(self._receive, finish, works, microbatch)).result  # type: ignore[assignment]
        super().__setitem__(key, [PendingReceive(works, finish)])

    def _receive(self, finish: Callable[[], object], works: Sequence[Waitable], microbatch: int) -> None:
        finish()
        self._note(microbatch, getattr(works[-1], "mark", None) if works else None)
