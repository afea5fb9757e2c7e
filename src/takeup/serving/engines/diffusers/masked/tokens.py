"""Convert a pixel mask to the tokens to compute, on every grid (resolution) of a network."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch.nn.functional import adaptive_max_pool2d, max_pool2d

from takeup.serving.engines.diffusers.masked.call import TokenIndices

NUM_LEVELS = 4
"""Of a U-Net, at most; each halves the one before."""

Grid = tuple[int, int]
TokenCounts = tuple[int, ...]
"""How many tokens are computed on every grid, the finest first."""
ChooseCounts = Callable[[TokenCounts], TokenCounts]

SIZES_PER_OCTAVE = 4


def token_mask(mask: torch.Tensor, grid: Grid, grow: int = 0) -> torch.Tensor:
    """Tokens that a mask overlaps, dilated by `grow` tokens."""
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


def token_indices(
    masks: Sequence[torch.Tensor], grids: Sequence[Grid], multiple: int = 1, choose: ChooseCounts = tuple
) -> dict[int, TokenIndices]:
    """Computed tokens of each row on every grid, padded to the longest row or to the next bucket size (`bucket_sizes`).

    `choose` maps the required sizes to the sizes used.
    """
    tokens = [[token_mask(mask, grid).flatten().nonzero().flatten() for mask in masks] for grid in grids]
    sizes = [height * width for height, width in grids]
    needed = bucket_sizes([max(map(len, rows)) for rows in tokens], multiple)
    taken = choose(tuple(map(min, needed, sizes)))
    return {size: _places(rows, room, size) for size, rows, room in zip(sizes, tokens, taken, strict=True)}


def _places(rows: Sequence[torch.Tensor], room: int, num_tokens: int) -> TokenIndices:
    return TokenIndices.of(torch.stack([padded(row, room) for row in rows]), num_tokens)


def bucket_sizes(counts: Sequence[int], multiple: int) -> TokenCounts:
    """Padded token counts per grid: those of the smallest square mask, of few bucket sizes, in which all counts fit.

    Similar masks then have equal shapes on all grids and share a CUDA graph. A multiple of one disables padding.
    """
    if multiple == 1:
        return tuple(counts)
    first = bucket_size(counts[0], multiple)
    while any(count > room for count, room in zip(counts, _of_square(first, len(counts), multiple), strict=True)):
        first = bucket_size(first + 1, multiple)
    return _of_square(first, len(counts), multiple)


def _of_square(num_tokens: int, num_grids: int, multiple: int) -> TokenCounts:
    """`num_tokens` on the first grid, and on the others as many as a square of that area usually overlaps."""
    sides = [math.sqrt(num_tokens) / 2**level + 0.5 for level in range(1, num_grids)]
    return num_tokens, *(-(-math.ceil(side * side) // multiple) * multiple for side in sides)


def bucket_size(count: int, multiple: int) -> int:
    """Round up to a bucket size: to `multiple`, or for large counts to a quarter of an octave."""
    octave = 1 << max(count, 1).bit_length() - 1
    step = multiple if multiple == 1 else max(multiple, octave // SIZES_PER_OCTAVE)
    return -(-count // step) * step


def padded(row: torch.Tensor, length: int) -> torch.Tensor:
    """Pad to `length` by repeating the last token; an empty row repeats token 0."""
    last = row[-1:] if len(row) else row.new_zeros(1)
    return torch.cat([row, last.expand(length - len(row))])
