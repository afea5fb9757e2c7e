"""Receives that note when their message came, not when somebody asked for it.

A receive of Gloo cannot be asked whether it is complete, only waited for. So a thread waits for the messages of one
direction in the order in which they come, and whoever needs a message waits for that thread.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from queue import SimpleQueue
from threading import Thread
from typing import Any, Protocol

__all__ = ["Arrival", "Arrivals", "Waitable"]

Key = tuple[int, int]  # stage and micro-batch


class Waitable(Protocol):
    """A message under way."""

    def wait(self) -> object:
        """Return when it has come; raise if it will not."""


class Arrival:
    """All messages of one receive, as one that can be waited for from another thread."""

    def __init__(self, works: Sequence[Waitable], note: Callable[[], None]) -> None:
        self._works = works
        self._note = note
        self._done: Future[None] = Future()

    def receive(self) -> None:
        """Wait for the messages, and let those who wait go on."""
        try:
            for work in self._works:
                work.wait()
            self._note()
        except BaseException as error:
            self._done.set_exception(error)
        else:
            self._done.set_result(None)

    def wait(self) -> None:
        """Return when the messages have come; raise what went wrong with them."""
        self._done.result()


class Arrivals(dict[Key, list[Any]]):
    """Receives by stage and micro-batch, as the runtime of PyTorch keeps them; `note` is told of each that came."""

    def __init__(self, note: Callable[[int], None]) -> None:
        super().__init__()
        self._note = note
        self._expected: SimpleQueue[Arrival | None] = SimpleQueue()
        # A daemon: it may wait for a rank that failed, and must not keep this one from failing too.
        Thread(target=_receive_all, args=(self._expected,), name="takeup-arrivals", daemon=True).start()
        weakref.finalize(self, self._expected.put, None)

    def __setitem__(self, key: Key, works: list[Waitable]) -> None:
        note, microbatch = self._note, key[1]
        arrival = Arrival(works, lambda: note(microbatch))
        self._expected.put(arrival)
        super().__setitem__(key, [arrival])


def _receive_all(expected: SimpleQueue[Arrival | None]) -> None:
    while (arrival := expected.get()) is not None:
        arrival.receive()
