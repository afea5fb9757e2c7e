"""Double buffering: prefetch the next step's cached activations on a side stream while a call reads another buffer."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from contextlib import nullcontext
from typing import Any, Protocol

import torch

from takeup.serving.engines.diffusers.masked.brought import LoadedPage

Read = Callable[[], Sequence[LoadedPage]]
cuda: Any = torch.cuda  # torch.cuda functions are not annotated


class PrefetchBuffer(Protocol):
    """Buffer from which a call reads cached activations."""

    def load(self, pages: Sequence[LoadedPage]) -> None:
        """Copy pages in, each to its own rows of the batch."""

    def finish(self, pages: Sequence[LoadedPage]) -> None:
        """Compute keys and values that were not loaded."""


class DoubleBuffer:
    """Tracks the contents of each buffer. The key is equal for equal pages: the edits and their steps.

    All instances that share memory copy on one `stream`; None on the CPU, where copies are synchronous.
    """

    def __init__(self, places: Sequence[PrefetchBuffer], stream: Any) -> None:
        self._places, self._stream = places, stream
        self._filled: list[Any] = [cuda.Event() for _ in places] if self._stream else []
        self._who: list[Hashable] = [None for _ in places]
        self._pages: list[Sequence[LoadedPage]] = [() for _ in places]
        self._is_finished = [True for _ in places]

    def now(self, who: Hashable, read: Read) -> int:
        """Number of the buffer that has these pages; they are loaded now if they were not prefetched."""
        if who not in self._who:
            self._bring(0, who, read)
        number = self._who.index(who)
        if self._stream:
            cuda.current_stream().wait_event(self._filled[number])
        return number

    def finish(self, number: int) -> None:
        """Compute what was not loaded; call after `soon`, to overlap with the copies for the next step."""
        if not self._is_finished[number]:
            self._places[number].finish(self._pages[number])
            self._is_finished[number] = True

    def soon(self, number: int, who: Hashable, read: Read) -> None:
        """Prefetch the next pages into this buffer; the copy waits for work enqueued so far, its last reader."""
        self._bring(number, who, read)

    def forget(self) -> None:
        """Mark all buffers as invalid."""
        self._who = [None for _ in self._places]

    def let_go(self) -> None:
        """Drop references to loaded pages: they may be the last ones to an evicted template."""
        for filled in self._filled:
            filled.synchronize()  # pending copies still read the pages
        self._pages = [() for _ in self._places]
        self.forget()

    def _bring(self, number: int, who: Hashable, read: Read) -> None:
        if self._stream:
            self._filled[number].synchronize()  # pending copies read the pages released below
            self._stream.wait_stream(cuda.current_stream())
        with cuda.stream(self._stream) if self._stream else nullcontext():
            pages = self._pages[number] = read()
            self._places[number].load(pages)
        if self._stream:
            self._filled[number].record(self._stream)
        self._who[number], self._is_finished[number] = who, False
