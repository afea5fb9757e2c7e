"""Gather tables (im2col) of convolutions over masked pixels: computed pixels, a rim of cached ones, or zero padding.

How it works. A 3x3 convolution multiplies the nine neighbours of every pixel by the weights. The inputs are
concatenated: computed pixels of all batch rows, then cached neighbours of the mask, its *rim* (halo), then one zero for
what is outside the image. A table holds the index of each of the nine neighbours.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch

from takeup.serving.engines.diffusers.masked.call import TokenIndices
from takeup.serving.engines.diffusers.masked.tokens import Grid, padded

USUAL_RIM = 8
Resampling = Literal["same", "down", "up"]
"""A convolution on one grid, from a grid to its half (stride two), or from a grid to its double (pixels repeated)."""


@dataclass(frozen=True, slots=True)
class GatherTable:
    """`table`: nine input indices per output pixel. `rim`: cached pixels, as indices into the flattened batch."""

    table: torch.Tensor
    rim: torch.Tensor


def gather_table(
    places: Mapping[int, TokenIndices], grid: Grid, move: Resampling, wide: Grid, multiple: int = 1
) -> GatherTable:
    """Gather table of a convolution whose input is on `grid` and whose output is on `wide`.

    With a multiple above one the rim is padded: that costs nothing, and gives calls equal shapes.
    """
    inside, outside = places[grid[0] * grid[1]], places[wide[0] * wide[1]]
    num_rows, num_inside = inside.by_row.shape
    tokens, is_pixel = _neighbours(outside.by_row, grid, wide, move)
    first = torch.arange(num_rows, device=tokens.device)[:, None, None]
    position = _positions(inside)[first, tokens]
    flat = tokens + first * inside.num_tokens
    is_kept = is_pixel & (position < 0)
    rim = torch.unique(flat[is_kept])
    num_rim = len(rim) if multiple == 1 else _room(len(rim), num_rows, num_inside)
    table = torch.where(is_kept, num_rows * num_inside + torch.searchsorted(rim, flat), position + first * num_inside)
    table = torch.where(is_pixel, table, num_rows * num_inside + num_rim)
    return GatherTable(table.flatten(0, 1), padded(rim, num_rim))


def gather_tables(
    places: Mapping[int, TokenIndices], grids: list[Grid], multiple: int = 1
) -> dict[tuple[int, Resampling], GatherTable]:
    """Gather tables of all convolutions of a U-Net with these grids, by number of input pixels and move."""
    found: dict[tuple[int, Resampling], GatherTable] = {}
    for fine, coarse in zip(grids, [*grids[1:], None], strict=True):
        found[_size(fine), "same"] = gather_table(places, fine, "same", fine, multiple)
        if coarse is not None:
            found[_size(fine), "down"] = gather_table(places, fine, "down", coarse, multiple)
            found[_size(coarse), "up"] = gather_table(places, coarse, "up", fine, multiple)
    return found


def entry_table(places: TokenIndices, grid: Grid) -> torch.Tensor:
    """Gather table of a convolution whose input has all pixels."""
    tokens, is_pixel = _neighbours(places.by_row, grid, grid, "same")
    num_rows = len(places.by_row)
    first = torch.arange(num_rows, device=tokens.device)[:, None, None] * places.num_tokens
    return torch.where(is_pixel, tokens + first, num_rows * places.num_tokens).flatten(0, 1)


def _room(num_rim: int, num_rows: int, num_inside: int) -> int:
    """Padded rim size: a power of two, at least twice the rim of squares of `num_inside` pixels, so sizes are few."""
    usual = math.ceil(USUAL_RIM * num_rows * math.sqrt(num_inside))
    return 1 << (max(num_rim, usual) - 1).bit_length()


def _size(grid: Grid) -> int:
    return grid[0] * grid[1]


def _positions(places: TokenIndices) -> torch.Tensor:
    """Index of every token of every row among the computed ones, or -1."""
    num_rows, num_inside = places.by_row.shape
    numbers = torch.arange(num_inside, device=places.by_row.device).expand(num_rows, -1)
    return numbers.new_full((num_rows, places.num_tokens), -1).scatter_(1, places.by_row, numbers)


def _neighbours(tokens: torch.Tensor, grid: Grid, wide: Grid, move: Resampling) -> tuple[torch.Tensor, torch.Tensor]:
    """Nine input tokens for each output token, and which of them are inside the image."""
    offsets = torch.arange(-1, 2, device=tokens.device)
    stride = 2 if move == "down" else 1
    rows = (stride * (tokens // wide[1]))[..., None, None] + offsets[:, None]
    columns = (stride * (tokens % wide[1]))[..., None, None] + offsets
    height, width = wide if move == "up" else grid
    is_pixel = (rows >= 0) & (rows < height) & (columns >= 0) & (columns < width)
    shrink = 2 if move == "up" else 1
    found = (rows.clamp(0, height - 1) // shrink) * grid[1] + columns.clamp(0, width - 1) // shrink
    return found.flatten(2), is_pixel.flatten(2)
