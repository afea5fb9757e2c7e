"""Two places for what is kept take turns: one is filled on a stream of its own, while a call reads the other."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from contextlib import nullcontext
from typing import Any, Protocol

import torch

from takeup.serving.engines.diffusers.masked.brought import Brought

__all__ = ["Place", "Turns"]

Read = Callable[[], Sequence[Brought]]
cuda: Any = torch.cuda  # whose functions are not annotated


class Place(Protocol):
    """Where a call finds what is kept."""

    def bring(self, pages: Sequence[Brought]) -> None:
        """Copy pages in, each for its own rows."""

    def finish(self, pages: Sequence[Brought]) -> None:
        """Make what did not come."""


class Turns:
    """Knows what lies where. `who` is equal for equal pages: edits, and how far they are.

    All that share memory copy on one `stream`; None on the host, which copies at once.
    """

    def __init__(self, places: Sequence[Place], stream: Any) -> None:
        self._places, self._stream = places, stream
        self._filled: list[Any] = [cuda.Event() for _ in places] if self._stream else []
        self._who: list[Hashable] = [None for _ in places]
        self._pages: list[Sequence[Brought]] = [() for _ in places]
        self._is_finished = [True for _ in places]

    def now(self, who: Hashable, read: Read) -> int:
        """The place that has these pages; they are brought there if they were not expected."""
        if who not in self._who:
            self._bring(0, who, read)
        number = self._who.index(who)
        if self._stream:
            cuda.current_stream().wait_event(self._filled[number])
        return number

    def finish(self, number: int) -> None:
        """Make what did not come, beside copies for the next step: say so after `soon`."""
        if not self._is_finished[number]:
            self._places[number].finish(self._pages[number])
            self._is_finished[number] = True

    def soon(self, number: int, who: Hashable, read: Read) -> None:
        """Bring what is needed next into this place, which nobody reads after what was sent so far."""
        self._bring(number, who, read)

    def forget(self) -> None:
        """Something else lies there now."""
        self._who = [None for _ in self._places]

    def let_go(self) -> None:
        """Keep nothing of what was brought: it may be all that is left of a template."""
        for filled in self._filled:
            filled.synchronize()  # copies read it until then
        self._pages = [() for _ in self._places]
        self.forget()

    def _bring(self, number: int, who: Hashable, read: Read) -> None:
        if self._stream:
            self._filled[number].synchronize()  # nobody copies from pages that are let go of now
            self._stream.wait_stream(cuda.current_stream())
        with cuda.stream(self._stream) if self._stream else nullcontext():
            pages = self._pages[number] = read()
            self._places[number].bring(pages)
        if self._stream:
            self._filled[number].record(self._stream)
        self._who[number], self._is_finished[number] = who, False
