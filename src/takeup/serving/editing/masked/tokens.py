"""Tokens of a masked call: from a pixel mask to the tokens to compute on every grid, and cached values of the rest."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch.nn.functional import adaptive_max_pool2d, max_pool2d

# Cached activations of templates as input of a call: the rows of its requests concatenated, in a private copy ---------

MAP, NORM, OUT = ".map", ".norm", "out"
"""How names end under which inputs of convolutions and norms are kept; the name of the network's answer."""
PLACED = (MAP, NORM, ".k", ".v", OUT)
"""How names end of what recorded calls have places for, to which it can be copied from anywhere."""

Page = Mapping[str, torch.Tensor]
"""What one step of a template left, by name."""


def working_copy(page: Page, fronted: frozenset[str] = frozenset(), num_front: int = 0) -> dict[str, torch.Tensor]:
    """A copy that a call may write to, with space for `num_front` text tokens before the names in `fronted`.

    Maps and norms are read-only, so they are shared with the template.
    """
    return {
        name: kept if name.endswith((MAP, NORM)) else _with_front(kept, num_front if name in fronted else 0)
        for name, kept in page.items()
    }


def stacked(
    pages: Sequence[Page], fronted: frozenset[str] = frozenset(), num_front: int = 0
) -> dict[str, torch.Tensor]:
    """Working copy of the pages of several templates, concatenated along the batch."""
    together = {name: torch.cat([page[name] for page in pages]) for name in pages[0]}
    return working_copy(together, fronted, num_front) if num_front or len(pages) == 1 else together


def copy_named(page: Page, into: Page) -> None:
    """Copy all tensors of a page that `into` has a buffer for; each side must have a single dtype."""
    both = [name for name in into if name in page]
    if both:
        torch._foreach_copy_([into[name] for name in both], [page[name] for name in both], non_blocking=True)


def _with_front(kept: torch.Tensor, num_front: int) -> torch.Tensor:
    if not num_front:
        return kept.clone(memory_format=torch.contiguous_format)
    room = kept.new_empty((len(kept), num_front + kept.shape[1], *kept.shape[2:]))
    room[:, num_front:] = kept
    return room


# State that the hooks of a network share during a call: which tokens are computed, and cached values of the rest ------
#
# How it works. Tokens interact only through keys and values. So a network can compute a subset of its tokens, if
#
#     the subset is *taken* (gathered) where tokens enter the blocks,
#     keys and values of the other tokens are *filled* in, and
#     the output of the blocks is filled in too,
#
# with the activations of a run in which all tokens were computed (`record`). Each filled tensor has a name. Every row
# of the batch has a separate subset. Shorter rows are padded by repeating a token: it is computed twice, to the same
# value, and written to the same index.

Mode = Literal["off", "record", "masked"]


@dataclass(frozen=True, slots=True)
class TokenIndices:
    """Indices of the computed tokens of one grid: per row of the batch, and in the flattened batch."""

    by_row: torch.Tensor
    num_tokens: int
    flat: torch.Tensor

    @classmethod
    def of(cls, by_row: torch.Tensor, num_tokens: int) -> TokenIndices:
        """`by_row`: token indices for every row of the batch."""
        first = torch.arange(len(by_row), device=by_row.device)[:, None] * num_tokens
        return cls(by_row, num_tokens, (by_row + first).flatten())

    def after(self, num_front: int) -> TokenIndices:
        """The same tokens after `num_front` tokens that are all computed."""
        front = torch.arange(num_front, device=self.by_row.device).expand(len(self.by_row), -1)
        return TokenIndices.of(torch.cat([front, self.by_row + num_front], dim=1), num_front + self.num_tokens)


@dataclass(slots=True, eq=False)
class HookState:
    """Shared by all hooks of a network. `places` is keyed by tokens per grid; `kept` is modified in place."""

    mode: Mode = "off"
    places: Mapping[int, TokenIndices] = field(default_factory=dict)
    kept: Mapping[str, torch.Tensor] = field(default_factory=dict)
    recorded: dict[str, torch.Tensor] = field(default_factory=dict)
    num_front: int = 0
    """Text tokens in front of those of the image, in networks that have both in one sequence."""
    made: dict[str, object] = field(default_factory=dict)
    """What all blocks of a call share; forgotten with the places it was made for."""

    def take(self, tokens: torch.Tensor) -> torch.Tensor:
        """Gather the tokens to compute; all of them unless masked."""
        if self.mode != "masked":
            return tokens
        places = self.places[tokens.shape[1]]
        taken = tokens.reshape(-1, tokens.shape[-1]).index_select(0, places.flat)
        return taken.view(len(tokens), -1, tokens.shape[-1])

    def fill(self, name: str, tokens: torch.Tensor, num_front: int = 0) -> torch.Tensor:
        """Scatter computed tokens into the cached ones. The first `num_front` are always computed, never cached."""
        if self.mode == "off":
            return tokens
        if self.mode == "record":
            self.recorded[name] = tokens[:, num_front:].detach()
            return tokens
        return self._filled(self.kept[name], tokens, num_front)

    def turns(self, table: tuple[torch.Tensor, torch.Tensor], num_front: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Rotary embeddings of the computed tokens, per row of the batch, from a table of all positions."""
        if "turns" not in self.made:
            places = self._behind(len(table[0]) - num_front, num_front)
            self.made["turns"] = tuple(part[places.by_row] for part in table)
        found = self.made["turns"]
        assert isinstance(found, tuple)
        return found[0], found[1]

    def _filled(self, kept: torch.Tensor, tokens: torch.Tensor, num_front: int) -> torch.Tensor:
        places = self._behind(kept.shape[1] - num_front, num_front)
        rows = kept.view(kept.shape[0] * kept.shape[1], -1)
        rows.index_copy_(0, places.flat, tokens.reshape(len(places.flat), -1))
        return kept

    def _behind(self, num_tokens: int, num_front: int) -> TokenIndices:
        """Indices after `num_front` tokens; computed once per call and shared by all blocks."""
        if not num_front:
            return self.places[num_tokens]
        if "behind" not in self.made:
            self.made["behind"] = self.places[num_tokens].after(num_front)
        found = self.made["behind"]
        assert isinstance(found, TokenIndices)
        return found


# Convert a pixel mask to the tokens to compute, on every grid (resolution) of a network -------------------------------

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
