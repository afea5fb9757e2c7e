"""How far tokens outside a mask are from what was kept of them: computed beside the others, and compared."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from takeup.serving.engines.diffusers.masked.pages import MAP, NORM, Page
from takeup.serving.engines.diffusers.masked.tokens import Grid, grids_of, token_mask

__all__ = ["Watched", "stale_error", "taken", "watched_tokens"]

Watched = Mapping[int, torch.Tensor]
"""Tokens that are looked at, by the number of tokens of their grid: numbers in the flattened batch."""


def watched_tokens(computed: torch.Tensor, watched: torch.Tensor, num_levels: int, rows: slice) -> Watched:
    """Of an edit in these rows: tokens that are `watched` on a grid, and that it does not need there."""
    size = (computed.shape[0], computed.shape[1])
    return {grid[0] * grid[1]: _of_grid(computed, watched, grid, rows) for grid in grids_of(size, num_levels)}


def _of_grid(computed: torch.Tensor, watched: torch.Tensor, grid: Grid, rows: slice) -> torch.Tensor:
    only = token_mask(watched, grid) & ~token_mask(computed, grid)
    tokens = only.flatten().nonzero().flatten()
    first = torch.arange(rows.start, rows.stop, device=tokens.device)[:, None] * (grid[0] * grid[1])
    return (first + tokens).flatten()


def taken(kept: Page, watched: Watched, num_front: int = 0) -> torch.Tensor:
    """All that is kept of these tokens; before a call what they were, after it what they are.

    `num_front` tokens stand before those of the image, in whatever has more than a grid.
    """
    found = []
    for name, one in kept.items():
        if not name.endswith((MAP, NORM)):
            image = one if one.shape[1] in watched else one[:, num_front:]
            found.append(image.flatten(2).flatten(0, 1)[watched[image.shape[1]]].flatten())
    return torch.cat(found)


def stale_error(before: torch.Tensor, after: torch.Tensor) -> torch.Tensor:
    """Relative to the size of what was kept."""
    gone, size = (torch.linalg.vector_norm(one.float()) for one in (after.float() - before.float(), before))
    error: torch.Tensor = gone / size.clamp(min=1e-10)
    return error
