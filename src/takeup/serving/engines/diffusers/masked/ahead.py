"""Pages of a template brought to the device beside the steps: one place is filled while the network reads another.

How it works. Two places for what is kept take turns. A stream of its own copies the next page from the host (from
pinned memory, else the copy would wait for the device), unpacks it into the place that is free, and says so by an
event. A step waits for the event of its own page; a page waits until the step that read its place is done.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch

__all__ = ["Ahead", "Fillable", "pinned"]

FlatPage = tuple[torch.Tensor, ...]
cuda: Any = torch.cuda  # whose functions are not annotated


class Fillable(Protocol):
    """A place for what is kept of a step."""

    def fill(self, *page: torch.Tensor) -> None:
        """Unpack a page that lies on the device."""


class Ahead:
    """Plays the steps of an edit: `plays[i]` computes from `flats[i]`. Pages are cut already."""

    def __init__(self, flats: Sequence[Fillable], plays: Sequence[Callable[[], torch.Tensor]]) -> None:
        self._flats, self._plays = flats, plays
        self._on_device = cuda.is_available()
        self._stream: Any = cuda.Stream() if self._on_device else None
        self._filled, self._read = ([cuda.Event() for _ in flats] if self._on_device else [] for _ in range(2))
        self._staged: list[torch.Tensor] = []
        self._pages: Sequence[FlatPage] = ()

    def begin(self, pages: Sequence[FlatPage]) -> None:
        """The pages of the next edit, in order."""
        self._pages = pages
        if self._on_device:
            self._stream.wait_stream(cuda.current_stream())  # which may still be cutting them
        self._bring(0)

    def play(self, step: int) -> torch.Tensor:
        """This step's prediction; the next page is on its way meanwhile."""
        place = step % len(self._flats)
        if self._on_device:
            cuda.current_stream().wait_event(self._filled[place])
        if len(self._flats) > 1:
            self._bring(step + 1)
        made = self._plays[place]()
        if self._on_device:
            self._read[place].record()
        if len(self._flats) == 1:
            self._bring(step + 1)
        return made

    def _bring(self, step: int) -> None:
        if step >= len(self._pages):
            return
        place = step % len(self._flats)
        if not self._on_device:
            self._flats[place].fill(*self._pages[step])
            return
        with cuda.stream(self._stream):
            self._stream.wait_event(self._read[place])
            self._flats[place].fill(*self._on_the_device(self._pages[step]))
            self._filled[place].record(self._stream)

    def _on_the_device(self, page: FlatPage) -> FlatPage:
        """Copied into memory that is used again for every page: the stream orders copies and readers."""
        if page[0].is_cuda:
            return page
        if [one.shape for one in self._staged] != [one.shape for one in page]:
            self._staged = [torch.empty_like(one, device="cuda") for one in page]
        for staged, one in zip(self._staged, page, strict=True):
            staged.copy_(one, non_blocking=True)
        return tuple(self._staged)


def pinned(page: FlatPage) -> FlatPage:
    """In memory of the host from which copies run beside everything else."""
    if not cuda.is_available():
        return tuple(one.cpu() for one in page)
    return tuple(torch.empty(one.shape, dtype=one.dtype, pin_memory=True).copy_(one) for one in page)
