"""What a bound U-Net keeps of a step, in fixed memory: keys and values whole, of maps the rim only, norms exactly."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from copy import copy

import torch

from takeup.serving.engines.diffusers.masked.call import Places
from takeup.serving.engines.diffusers.masked.columns import Found
from takeup.serving.engines.diffusers.masked.flat import Flat, flatten, put
from takeup.serving.engines.diffusers.masked.gather import Affine
from takeup.serving.engines.diffusers.masked.neighbours import Around, Move, arounds, entrance
from takeup.serving.engines.diffusers.masked.pages import MAP, NORM, OUT, Page
from takeup.serving.engines.diffusers.masked.rims import Rims
from takeup.serving.engines.diffusers.masked.tokens import Grid, grids_of

__all__ = ["KeptColumns", "Tables", "flatten_columns"]

FlatPage = tuple[torch.Tensor, ...]
"""Keys and values in eight bits and their scales, maps and their scales, norms."""


class Tables:
    """Where the pixels of one call are: shared by all that is kept for it."""

    def __init__(self, places: Mapping[int, Places], size: Grid, multiple: int = 64) -> None:
        grids = [grid for grid in grids_of(size) if grid[0] * grid[1] in places]
        self.size, self.places = size, places
        self.enter = entrance(places[size[0] * size[1]], size)
        self._arounds = arounds(places, grids, multiple)
        self._parts: dict[Hashable, tuple[slice, torch.Tensor]] = {}

    def of(self, name: str, num_pixels: int) -> Around:
        """Of the convolution with this name, whose input has so many pixels."""
        return self._arounds[num_pixels, _move_of(name)]

    @property
    def sizes(self) -> Hashable:
        """Equal for tables that can take each other's place."""
        return self.size, *(tuple(one.shape) for one in self._tensors())

    def copied(self) -> Tables:
        """The same in memory of its own."""
        made = copy(self)
        made.places = {number: one.copied() for number, one in self.places.items()}
        made.enter, made._parts = self.enter.clone(), {}
        made._arounds = {key: Around(one.table.clone(), one.rim.clone()) for key, one in self._arounds.items()}
        return made

    def take(self, other: Tables) -> None:
        """Say what the other says, where everything lies already."""
        for mine, theirs in zip(self._tensors(), other._tensors(), strict=True):
            mine.copy_(theirs)
        self._parts = {}

    def part(self, name: str, num_pixels: int, rows: range, device: torch.device) -> tuple[slice, torch.Tensor]:
        """Of this rim the pixels of these rows: which of all they are, and where in these rows."""
        key = num_pixels, _move_of(name), rows, device
        if key not in self._parts:
            rim = self.of(name, num_pixels).rim
            edges = torch.tensor([rows.start, rows.stop], device=rim.device) * num_pixels
            first, last = torch.searchsorted(rim, edges).tolist()
            self._parts[key] = slice(first, last), (rim[first:last] - rows.start * num_pixels).to(device)
        return self._parts[key]

    def _tensors(self) -> Iterator[torch.Tensor]:
        yield self.enter
        for places in self.places.values():
            yield from (places.by_row, places.flat)
        for one in self._arounds.values():
            yield from (one.table, one.rim)


class KeptColumns:
    """Filled for every step; between fills nothing in it moves. Keys and values can lie in a `flat` of others."""

    def __init__(self, page: Page, tables: Tables, flat: Flat | None = None) -> None:
        kept, maps, norms = _parted(page)
        self.tables, self.flat = tables, flat or Flat(kept)
        self._found = {name: tables.of(name, one.shape[1]) for name, one in maps.items()}
        self._rims = Rims(maps, {name: found.rim for name, found in self._found.items()})
        self._norms = torch.empty(sum(one.numel() for one in norms.values()), device=self._rims.values.device)
        split = torch.split(self._norms, [one.numel() for one in norms.values()])
        self._affines = {name: part.view(len(norms[name]), -1) for name, part in zip(norms, split, strict=True)}
        self.views = self.flat.views
        self._views_of: dict[range, list[dict[str, torch.Tensor]]] = {}

    def cut(self, page: FlatPage) -> FlatPage:
        """The part of a page that this call needs."""
        return *page[:2], *self._rims.cut(page[2], page[3]), page[4]

    @torch.no_grad()
    def fill(self, *cut: torch.Tensor) -> None:
        """From a page that was cut."""
        self.flat.fill(cut[0], cut[1])
        self._rims.fill(cut[2], cut[3])
        self._norms.copy_(cut[4], non_blocking=True)

    @torch.no_grad()
    def bring(self, pages: Sequence[Page]) -> None:
        """From pages as templates give them, each for its own rows, one below the other."""
        first = 0
        for page in pages:
            rows = range(first, first + len(page[OUT]))
            first = rows.stop
            for into in self._into(rows):
                copied = [page[name] for name in into]
                torch._foreach_copy_(list(into.values()), copied, non_blocking=True)
            for name, view in self._rims.views.items():
                self._bring_rim(view, page[name], self.tables.part(name, page[name].shape[1], rows, page[name].device))

    def _into(self, rows: range) -> list[dict[str, torch.Tensor]]:
        """All that is copied whole, for these rows; of one precision each."""
        if rows not in self._views_of:
            own = slice(rows.start, rows.stop)
            norms = {name: view[own, None] for name, view in self._affines.items()}
            self._views_of[rows] = [{name: view[own] for name, view in self.views.items()}, norms]
        return self._views_of[rows]

    def _bring_rim(self, view: torch.Tensor, kept: torch.Tensor, part: tuple[slice, torch.Tensor]) -> None:
        own, places = part
        pixels = kept.view(-1, kept.shape[2])
        if kept.device == view.device:
            torch.index_select(pixels, 0, places, out=view[own])
        else:
            view[own].copy_(pixels.index_select(0, places), non_blocking=True)

    # What columns ask -----------------------------------------------------------------------------------------------

    def enter(self, size: Grid) -> torch.Tensor:
        return self.tables.enter

    def around(self, name: str, move: Move) -> Found:
        return self._rims.views[name + MAP], self._found[name + MAP].table

    def affine(self, name: str) -> Affine:
        scale, shift = self._affines[name + NORM].chunk(2, dim=1)
        return scale, shift

    def leave(self, tokens: torch.Tensor) -> torch.Tensor:
        every = self.views[OUT]
        put(every, self.tables.places[every.shape[1]].flat, tokens)
        return every.transpose(1, 2).view(len(every), -1, *self.tables.size)


def _move_of(name: str) -> Move:
    return "down" if ".downsamplers." in name else "up" if ".upsamplers." in name else "same"


def flatten_columns(page: Page) -> FlatPage:
    """A recorded page as it is kept."""
    kept, maps, norms = _parted(page)
    return *flatten(kept), *flatten(maps), torch.cat([one.flatten().float() for one in norms.values()])


def _parted(page: Page) -> tuple[Page, Page, Page]:
    maps = {name: one for name, one in page.items() if name.endswith(MAP)}
    norms = {name: one for name, one in page.items() if name.endswith(NORM)}
    return {name: one for name, one in page.items() if name not in maps and name not in norms}, maps, norms
