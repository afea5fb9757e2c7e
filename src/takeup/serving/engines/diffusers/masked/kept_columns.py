"""Cached activations of one step for CUDA-graph calls of U-Nets: all keys and values, map rims only, exact norms."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from importlib import import_module
from typing import Self

import torch

from takeup.serving.engines.diffusers.masked.brought import LoadedPage, page_rows
from takeup.serving.engines.diffusers.masked.call import TokenIndices
from takeup.serving.engines.diffusers.masked.columns import ConvolutionInputs
from takeup.serving.engines.diffusers.masked.flat import FlatKvCache, write_tokens
from takeup.serving.engines.diffusers.masked.gather import Affine
from takeup.serving.engines.diffusers.masked.neighbours import GatherTable, Resampling, entry_table, gather_tables
from takeup.serving.engines.diffusers.masked.pages import MAP, NORM, OUT, Page, copy_named
from takeup.serving.engines.diffusers.masked.tables import IndexTables
from takeup.serving.engines.diffusers.masked.tokens import Grid, grids_of


class ColumnTables(IndexTables):
    """Pixel positions and gather tables of one call, shared by all its buffers."""

    def __init__(self, places: Mapping[int, TokenIndices], size: Grid, multiple: int = 64) -> None:
        grids = [grid for grid in grids_of(size) if grid[0] * grid[1] in places]
        self.size, self.places = size, places
        self.enter = entry_table(places[size[0] * size[1]], size)
        self._arounds = gather_tables(places, grids, multiple)
        self._parts: dict[Hashable, tuple[slice, torch.Tensor]] = {}

    def of(self, name: str, num_pixels: int) -> GatherTable:
        """Gather table of the convolution with this name, whose input has `num_pixels`."""
        return self._arounds[num_pixels, _move_of(name)]

    def take(self, other: Self) -> None:
        super().take(other)
        self._parts = {}

    def part(self, name: str, num_pixels: int, rows: range) -> tuple[slice, torch.Tensor]:
        """Rim pixels of these batch rows: their slice of the rim, and their indices within these rows."""
        key = num_pixels, _move_of(name), rows
        if key not in self._parts:
            rim = self.of(name, num_pixels).rim
            edges = torch.tensor([rows.start, rows.stop], device=rim.device) * num_pixels
            first, last = torch.searchsorted(rim, edges).tolist()
            self._parts[key] = slice(first, last), rim[first:last] - rows.start * num_pixels
        return self._parts[key]

    def tensors(self) -> Iterator[torch.Tensor]:
        yield self.enter
        for places in self.places.values():
            yield from (places.by_row, places.flat)
        for one in self._arounds.values():
            yield from (one.table, one.rim)


class UnetCache:
    """Buffer at fixed addresses, filled for every step. Keys and values are in `flat`, which other calls share."""

    def __init__(self, page: Page, tables: ColumnTables, flat: FlatKvCache) -> None:
        maps = {name: one for name, one in page.items() if name.endswith(MAP)}
        norms = {name: one for name, one in page.items() if name.endswith(NORM)}
        self.tables, self.flat, self.views = tables, flat, flat.views
        self._found = {name: tables.of(name, one.shape[1]) for name, one in maps.items()}
        self._rims = {name: one.new_zeros(len(self._found[name].rim), one.shape[2]) for name, one in maps.items()}
        self._affines = {name: one.new_zeros(len(one), one.shape[2]) for name, one in norms.items()}
        self._views_of: dict[range, list[dict[str, torch.Tensor]]] = {}

    @torch.no_grad()
    def load(self, pages: Sequence[LoadedPage]) -> None:
        """Copy the pages of the templates in, each to its own rows of the batch."""
        for rows, one in page_rows(pages):
            self._bring_rims(one.page, rows)  # first: `part` synchronizes with all copies enqueued before
            for into in self._into(rows):
                copy_named(one.page, into)

    @torch.no_grad()
    def finish(self, pages: Sequence[LoadedPage]) -> None:
        """Compute keys and values of blocks whose inputs were loaded instead."""
        for rows, one in page_rows(pages):
            copy_named(one.made(), self._into(rows)[0])

    def _bring_rims(self, page: Page, rows: range) -> None:
        far = []
        for name, view in self._rims.items():
            own, places = self.tables.part(name, page[name].shape[1], rows)
            every = page[name].view(-1, view.shape[1])
            if every.device == view.device:
                torch.index_select(every, 0, places, out=view[own])
            else:
                far.append((every, places, view[own]))
        if far:
            import_module(f"{__package__}.host_rows").fetch(far)

    def _into(self, rows: range) -> list[dict[str, torch.Tensor]]:
        """Destinations of all tensors that are copied whole, for these rows; one dict per dtype."""
        if rows not in self._views_of:
            own = slice(rows.start, rows.stop)
            norms = {name: view[own, None] for name, view in self._affines.items()}
            self._views_of[rows] = [{name: view[own] for name, view in self.views.items()}, norms]
        return self._views_of[rows]

    # Source protocol of columns -------------------------------------------------------------------------------------

    def enter(self, size: Grid) -> torch.Tensor:
        return self.tables.enter

    def around(self, name: str, move: Resampling) -> ConvolutionInputs:
        return self._rims[name + MAP], self._found[name + MAP].table

    def affine(self, name: str) -> Affine:
        scale, shift = self._affines[name + NORM].chunk(2, dim=1)
        return scale, shift

    def leave(self, tokens: torch.Tensor) -> torch.Tensor:
        every = self.views[OUT]
        write_tokens(every, self.tables.places[every.shape[1]].flat, tokens)
        return every.transpose(1, 2).view(len(every), -1, *self.tables.size)


def _move_of(name: str) -> Resampling:
    return "down" if ".downsamplers." in name else "up" if ".upsamplers." in name else "same"
