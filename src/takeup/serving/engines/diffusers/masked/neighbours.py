"""Where a convolution of some pixels finds its inputs: the pixels that are computed, a rim of kept ones, or nothing.

How it works. A convolution of three by three is a product of every pixel's nine neighbours with the weights. Computed
pixels of all rows lie one below the other; kept neighbours that a mask touches, its *rim*, lie behind them, and a zero
behind these, for what is outside of the image. A table says where each of the nine is.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch

from takeup.serving.engines.diffusers.masked.call import Places
from takeup.serving.engines.diffusers.masked.tokens import Grid, padded

__all__ = ["Around", "Move", "around", "arounds", "entrance"]

USUAL_RIM = 8
Move = Literal["same", "down", "up"]
"""A convolution on one grid, from a grid to its half (stride two), or from a grid to its double (pixels repeated)."""


@dataclass(frozen=True, slots=True)
class Around:
    """`table`: for each pixel that comes out the nine that go in. `rim`: kept pixels of the flattened batch."""

    table: torch.Tensor
    rim: torch.Tensor


def around(places: Mapping[int, Places], grid: Grid, move: Move, wide: Grid, multiple: int = 1) -> Around:
    """Of a convolution whose input is on `grid` and whose output is on `wide`.

    With a multiple above one the rim has room: that costs nothing, and makes calls alike.
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
    return Around(table.flatten(0, 1), padded(rim, num_rim))


def arounds(places: Mapping[int, Places], grids: list[Grid], multiple: int = 1) -> dict[tuple[int, Move], Around]:
    """Of all convolutions a U-Net of these grids can have, by the pixels of the input and the move."""
    found: dict[tuple[int, Move], Around] = {}
    for fine, coarse in zip(grids, [*grids[1:], None], strict=True):
        found[_size(fine), "same"] = around(places, fine, "same", fine, multiple)
        if coarse is not None:
            found[_size(fine), "down"] = around(places, fine, "down", coarse, multiple)
            found[_size(coarse), "up"] = around(places, coarse, "up", fine, multiple)
    return found


def entrance(places: Places, grid: Grid) -> torch.Tensor:
    """The table of a convolution that has all pixels of its input."""
    tokens, is_pixel = _neighbours(places.by_row, grid, grid, "same")
    num_rows = len(places.by_row)
    first = torch.arange(num_rows, device=tokens.device)[:, None, None] * places.num_tokens
    return torch.where(is_pixel, tokens + first, num_rows * places.num_tokens).flatten(0, 1)


def _room(num_rim: int, num_rows: int, num_inside: int) -> int:
    """For twice the rim of squares of so many pixels, doubled until all fit: masks that are alike have as much."""
    usual = math.ceil(USUAL_RIM * num_rows * math.sqrt(num_inside))
    return 1 << (max(num_rim, usual) - 1).bit_length()


def _size(grid: Grid) -> int:
    return grid[0] * grid[1]


def _positions(places: Places) -> torch.Tensor:
    """For every token of every row its number among the computed ones, or -1."""
    num_rows, num_inside = places.by_row.shape
    numbers = torch.arange(num_inside, device=places.by_row.device).expand(num_rows, -1)
    return numbers.new_full((num_rows, places.num_tokens), -1).scatter_(1, places.by_row, numbers)


def _neighbours(tokens: torch.Tensor, grid: Grid, wide: Grid, move: Move) -> tuple[torch.Tensor, torch.Tensor]:
    """Nine tokens of the input for each of the output, and which of them are pixels of the image."""
    offsets = torch.arange(-1, 2, device=tokens.device)
    stride = 2 if move == "down" else 1
    rows = (stride * (tokens // wide[1]))[..., None, None] + offsets[:, None]
    columns = (stride * (tokens % wide[1]))[..., None, None] + offsets
    height, width = wide if move == "up" else grid
    is_pixel = (rows >= 0) & (rows < height) & (columns >= 0) & (columns < width)
    shrink = 2 if move == "up" else 1
    found = (rows.clamp(0, height - 1) // shrink) * grid[1] + columns.clamp(0, width - 1) // shrink
    return found.flatten(2), is_pixel.flatten(2)
