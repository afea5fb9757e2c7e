"""Receives that note when their message came, not when somebody asked for it.

A receive of Gloo cannot be asked whether it is complete, only waited for. So in an iteration that is measured a thread
waits for the messages of one direction in the order in which they come, and whoever needs a message waits for that
thread. In all others whoever needs a message waits for it directly: from thread to thread costs a tenth of a
millisecond, for every message. Nobody waits for ever: a message that does not come in time ends the job with a sentence
that says whose it was.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from typing import Any, Protocol

from takeup.errors import TakeupError
from takeup.training.engines.pytorch.worker import Worker

__all__ = ["Arrival", "Arrivals", "Waitable", "first_words", "wait_for"]

Key = tuple[int, int]  # stage and micro-batch


class Waitable(Protocol):
    """A message under way."""

    def wait(self, timeout: timedelta, /) -> object:
        """Return when it has come; raise if it will not, or not in time."""


def wait_for(works: Sequence[Waitable], timeout: timedelta, what: str) -> None:
    """Wait for messages; one that does not come is told by its name."""
    try:
        for work in works:
            work.wait(timeout)
    except RuntimeError as error:
        raise TakeupError(
            f"{what} did not come within {timeout.total_seconds():g} s, or its connection closed; "
            f"look whether that rank still runs, and start the job again ({first_words(error)})"
        ) from error


def first_words(error: BaseException) -> str:
    """What an error of Gloo says, without its advice."""
    return str(error).partition("\n")[0].partition(". This is")[0]


class Arrival:
    """All messages of one receive, as one that can be waited for; `finish` returns when they have come."""

    def __init__(self, works: Sequence[Waitable], finish: Callable[[], object]) -> None:
        self._works = works
        self._finish = finish

    def wait(self) -> None:
        """Return when the messages have come; raise what went wrong with them."""
        self._finish()
        for work in self._works:
            if land := getattr(work, "land", None):
                land()


class Arrivals(dict[Key, list[Any]]):
    """Receives by stage and micro-batch, as the runtime of PyTorch keeps them.

    While `eager` says so, a thread waits for messages and `note` is told of each that came, with the mark that says
    when, if there is one. Receives that PyTorch itself began wait on a stream of the device, and nobody for them;
    `mark_of` says when they come.
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
        self._worker = Worker("takeup-arrivals")
        self._posted: dict[int, Sequence[Waitable]] = {}

    def posted(self, microbatch: int, works: Sequence[Waitable]) -> None:
        """These receives were begun elsewhere; the runtime will have none for this micro-batch."""
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
        super().__setitem__(key, [Arrival(works, finish)])

    def _receive(self, finish: Callable[[], object], works: Sequence[Waitable], microbatch: int) -> None:
        finish()
        self._note(microbatch, getattr(works[-1], "mark", None) if works else None)
