"""KV cache of one step for CUDA-graph calls: static buffers and index tables at fixed addresses, for Flux and U-Nets.

Keys and values are in one contiguous allocation, with a view for every name. A CUDA graph reads tables in place; new
contents are copied in. U-Nets also cache the rims of feature maps, and exact norms.
"""

from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterator, Mapping, Sequence
from copy import deepcopy
from importlib import import_module
from typing import Any, Self

import torch

from takeup.serving.editing.masked.masked_convolutions import (
    Affine,
    ConvolutionInputs,
    GatherTable,
    Resampling,
    entry_table,
    gather_tables,
)
from takeup.serving.editing.masked.tokens import MAP, NORM, OUT, Grid, Page, TokenIndices, copy_named, grids_of

# Index tables at fixed addresses: a CUDA graph reads them in place; new contents are copied in ------------------------


class IndexTables(ABC):
    """Token positions of a call."""

    @abstractmethod
    def tensors(self) -> Iterator[torch.Tensor]:
        """All tensors that calls read."""

    @property
    def sizes(self) -> Hashable:
        """Shapes and dtypes; tables with equal sizes are interchangeable."""
        return tuple((tuple(one.shape), one.dtype) for one in self.tensors())

    def copied(self) -> Self:
        """Deep copy."""
        return deepcopy(self)

    def take(self, other: Self) -> None:
        """Copy the contents of the other tables in place."""
        for mine, theirs in zip(self.tensors(), other.tensors(), strict=True):
            mine.copy_(theirs)


# KV cache of one step for CUDA-graph calls: one contiguous allocation, with a view for every name ---------------------


class FlatKvCache:
    """The cached activations of a step, zero-initialized, shaped like `page`."""

    def __init__(self, page: Page) -> None:
        like = next(iter(page.values()))
        sizes = {name: kept.numel() for name, kept in page.items()}
        self.values = torch.zeros(sum(sizes.values()), dtype=like.dtype, device=like.device)
        parts = torch.split(self.values, list(sizes.values()))
        self.views = {name: part.view(page[name].shape) for (name, part) in zip(sizes, parts, strict=True)}


def page_rows(pages: Sequence[Page]) -> Iterator[tuple[range, Page]]:
    """Pages, each with the range of its rows in the batch."""
    first = 0
    for page in pages:
        rows = range(first, first + len(page[OUT]))
        first = rows.stop
        yield rows, page


def write_tokens(kept: torch.Tensor, places: torch.Tensor, tokens: torch.Tensor) -> None:
    """Write the computed tokens into the cached tensor of all tokens, in place."""
    _put(kept, places, tokens)


def _written(kept: torch.Tensor, places: torch.Tensor, tokens: torch.Tensor) -> None:
    width = kept.numel() // (kept.shape[0] * kept.shape[1])
    kept.view(-1, width).index_copy_(0, places, tokens.reshape(-1, width))


# A custom op, because the compiler would otherwise copy the whole cached tensor, there and back.
_put: Any = torch.library.custom_op(
    "takeup::put", _written, mutates_args=("kept",), schema="(Tensor(a!) kept, Tensor places, Tensor tokens) -> ()"
)
_put.register_fake(lambda kept, places, tokens: None)


# Cached activations of one step for CUDA-graph calls of Flux, at fixed addresses, and the token positions -------------


class TokenTables(IndexTables):
    """Positions of image tokens in a sequence that starts with the text; `turns` are their rotary embeddings."""

    def __init__(self, network: Any, places: Mapping[int, TokenIndices], ids: Mapping[str, torch.Tensor]) -> None:
        self.num_text = len(ids["txt_ids"])
        self.own = places[len(ids["img_ids"])]
        self.behind = self.own.after(self.num_text)
        table = network.pos_embed(torch.cat([ids["txt_ids"], ids["img_ids"]]))
        self.turns = table[0][self.behind.by_row], table[1][self.behind.by_row]

    def tensors(self) -> Iterator[torch.Tensor]:
        yield from (self.own.by_row, self.own.flat, self.behind.by_row, self.behind.flat, *self.turns)


class FluxCache:
    """Buffer filled for every step. Keys and values have space for the text, which every step recomputes."""

    def __init__(self, flat: FlatKvCache, num_text: int) -> None:
        self.flat, self._num_text = flat, num_text
        self._views_of: dict[range, dict[str, torch.Tensor]] = {}

    @torch.no_grad()
    def load(self, pages: Sequence[Page]) -> None:
        """Copy the pages of the templates in, each to its own rows of the batch."""
        for rows, page in page_rows(pages):
            copy_named(page, self._into(rows))

    def _into(self, rows: range) -> dict[str, torch.Tensor]:
        if rows not in self._views_of:
            own = slice(rows.start, rows.stop)
            fronts = {name: 0 if name == OUT else self._num_text for name in self.flat.views}
            self._views_of[rows] = {name: view[own, fronts[name] :] for name, view in self.flat.views.items()}
        return self._views_of[rows]


# Cached activations of one step for CUDA-graph calls of U-Nets: all keys and values, map rims only, exact norms -------


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
    def load(self, pages: Sequence[Page]) -> None:
        """Copy the pages of the templates in, each to its own rows of the batch."""
        for rows, page in page_rows(pages):
            self._bring_rims(page, rows)  # first: `part` synchronizes with all copies enqueued before
            for into in self._into(rows):
                copy_named(page, into)

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
            import_module(f"{__package__}.gather_kernels").fetch(far)

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
