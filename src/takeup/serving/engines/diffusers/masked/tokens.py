"""From a mask over pixels to the tokens that are computed, on every grid a network has."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch.nn.functional import adaptive_max_pool2d, max_pool2d

from takeup.serving.engines.diffusers.masked.call import Places

__all__ = ["NUM_LEVELS", "Grid", "grids_of", "padded", "places_of", "roomy", "token_mask"]

NUM_LEVELS = 4
"""Of a U-Net, at most; each halves the one before."""

Grid = tuple[int, int]
SIZES_PER_OCTAVE = 8


def token_mask(mask: torch.Tensor, grid: Grid, grow: int = 0) -> torch.Tensor:
    """Tokens that a mask touches anywhere, and those up to `grow` tokens beside them."""
    touched = adaptive_max_pool2d(mask[None, None].float(), grid)
    if grow:
        touched = max_pool2d(touched, 2 * grow + 1, stride=1, padding=grow)
    return touched[0, 0] > 0


def grids_of(grid: Grid, num_levels: int = NUM_LEVELS) -> list[Grid]:
    """The finest grid and its halves, rounded up as convolutions with stride two do."""
    grids = [grid]
    for _ in range(num_levels - 1):
        height, width = grids[-1]
        grids.append(((height + 1) // 2, (width + 1) // 2))
    return grids


def places_of(masks: Sequence[torch.Tensor], grids: Iterable[Grid], multiple: int = 1) -> dict[int, Places]:
    """For every grid the tokens of each row, as many for all: the most that a row has, made `roomy`."""
    return {height * width: _places(masks, (height, width), multiple) for height, width in grids}


def _places(masks: Sequence[torch.Tensor], grid: Grid, multiple: int) -> Places:
    rows = [token_mask(mask, grid).flatten().nonzero().flatten() for mask in masks]
    num_tokens = grid[0] * grid[1]
    most = roomy(max(map(len, rows)), multiple)
    return Places.of(torch.stack([padded(row, min(most, num_tokens)) for row in rows]), num_tokens)


def roomy(count: int, multiple: int) -> int:
    """Rounded up to one of few sizes, so that calls are alike: a multiple, or of large ones an eighth of an octave."""
    octave = 1 << max(count, 1).bit_length() - 1
    step = multiple if multiple == 1 else max(multiple, octave // SIZES_PER_OCTAVE)
    return -(-count // step) * step


def padded(row: torch.Tensor, length: int) -> torch.Tensor:
    """Repeat the last token; a row without one has the first."""
    last = row[-1:] if len(row) else row.new_zeros(1)
    return torch.cat([row, last.expand(length - len(row))])
