"""Receives that note when their message came, not when somebody asked for it.

A receive of Gloo cannot be asked whether it is complete, only waited for. So a thread waits for the messages of one
direction in the order in which they come, and whoever needs a message waits for that thread. Nobody waits for ever: a
message that does not come in time ends the job with a sentence that says whose it was.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
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
    """All messages of one receive, as one that can be waited for from another thread."""

    def __init__(self, works: Sequence[Waitable], done: Future[None]) -> None:
        self._works = works
        self._done = done

    def wait(self) -> None:
        """Return when the messages have come; raise what went wrong with them."""
        self._done.result()
        for work in self._works:
            if land := getattr(work, "land", None):
                land()


class Arrivals(dict[Key, list[Any]]):
    """Receives by stage and micro-batch, as the runtime of PyTorch keeps them; `note` is told of each that came."""

    def __init__(self, note: Callable[[int], None], what: str, timeout: timedelta) -> None:
        super().__init__()
        self._note = note
        self._what = what
        self._timeout = timeout
        self._worker = Worker("takeup-arrivals")
        self._posted: dict[int, Sequence[Waitable]] = {}

    def posted(self, microbatch: int, works: Sequence[Waitable]) -> None:
        """These receives were begun elsewhere; the runtime will have none for this micro-batch."""
        self._posted[microbatch] = works

    def __setitem__(self, key: Key, works: Sequence[Waitable]) -> None:
        microbatch = key[1]
        works = works or self._posted.pop(microbatch, ())
        receive = partial(_receive, works, self._timeout, f"{self._what} {microbatch}", self._note, microbatch)
        super().__setitem__(key, [Arrival(works, self._worker.submit(receive))])


def _receive(
    works: Sequence[Waitable], timeout: timedelta, what: str, note: Callable[[int], None], microbatch: int
) -> None:
    wait_for(works, timeout, what)
    note(microbatch)
