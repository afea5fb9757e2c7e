"""What a bound U-Net keeps of a step, in fixed memory: keys and values whole, of maps the rim only, norms exactly."""

from __future__ import annotations

from collections.abc import Mapping

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

    def of(self, name: str, num_pixels: int) -> Around:
        """Of the convolution with this name, whose input has so many pixels."""
        move: Move = "down" if ".downsamplers." in name else "up" if ".upsamplers." in name else "same"
        return self._arounds[num_pixels, move]


class KeptColumns:
    """Filled for every step; between fills nothing in it moves."""

    def __init__(self, page: Page, tables: Tables) -> None:
        kept, maps, norms = _parted(page)
        self._tables, self._flat = tables, Flat(kept)
        self._found = {name: tables.of(name, one.shape[1]) for name, one in maps.items()}
        self._rims = Rims(maps, {name: found.rim for name, found in self._found.items()})
        self._norms = torch.empty(sum(one.numel() for one in norms.values()), device=self._rims.values.device)
        split = torch.split(self._norms, [one.numel() for one in norms.values()])
        self._affines = {name: part.view(len(norms[name]), -1) for name, part in zip(norms, split, strict=True)}
        self.views = self._flat.views

    def cut(self, page: FlatPage) -> FlatPage:
        """The part of a page that this call needs."""
        return *page[:2], *self._rims.cut(page[2], page[3]), page[4]

    @torch.no_grad()
    def fill(self, *cut: torch.Tensor) -> None:
        """From a page that was cut."""
        self._flat.fill(cut[0], cut[1])
        self._rims.fill(cut[2], cut[3])
        self._norms.copy_(cut[4], non_blocking=True)

    # What columns ask -----------------------------------------------------------------------------------------------

    def enter(self, size: Grid) -> torch.Tensor:
        return self._tables.enter

    def around(self, name: str, move: Move) -> Found:
        return self._rims.views[name + MAP], self._found[name + MAP].table

    def affine(self, name: str) -> Affine:
        scale, shift = self._affines[name + NORM].chunk(2, dim=1)
        return scale, shift

    def leave(self, tokens: torch.Tensor) -> torch.Tensor:
        every = self.views[OUT]
        put(every, self._tables.places[every.shape[1]].flat, tokens)
        return every.transpose(1, 2).view(len(every), -1, *self._tables.size)


def flatten_columns(page: Page) -> FlatPage:
    """A recorded page as it is kept."""
    kept, maps, norms = _parted(page)
    return *flatten(kept), *flatten(maps), torch.cat([one.flatten().float() for one in norms.values()])


def _parted(page: Page) -> tuple[Page, Page, Page]:
    maps = {name: one for name, one in page.items() if name.endswith(MAP)}
    norms = {name: one for name, one in page.items() if name.endswith(NORM)}
    return {name: one for name, one in page.items() if name not in maps and name not in norms}, maps, norms
