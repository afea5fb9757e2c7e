"""Staleness of cached activations: some tokens outside the mask are computed too, and compared with the cache."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from takeup.serving.engines.diffusers.masked.pages import MAP, NORM, Page
from takeup.serving.engines.diffusers.masked.tokens import Grid, grids_of, token_mask

CheckedTokens = Mapping[int, torch.Tensor]
"""Tokens that are looked at, by the number of tokens of their grid: numbers in the flattened batch."""


def checked_tokens(computed: torch.Tensor, watched: torch.Tensor, num_levels: int, rows: slice) -> CheckedTokens:
    """Per grid, tokens of an edit in these rows that are `watched` and that the edit itself does not need."""
    size = (computed.shape[0], computed.shape[1])
    return {grid[0] * grid[1]: _of_grid(computed, watched, grid, rows) for grid in grids_of(size, num_levels)}


def _of_grid(computed: torch.Tensor, watched: torch.Tensor, grid: Grid, rows: slice) -> torch.Tensor:
    only = token_mask(watched, grid) & ~token_mask(computed, grid)
    tokens = only.flatten().nonzero().flatten()
    first = torch.arange(rows.start, rows.stop, device=tokens.device)[:, None] * (grid[0] * grid[1])
    return (first + tokens).flatten()


def cached_values(kept: Page, watched: CheckedTokens, num_front: int = 0) -> torch.Tensor:
    """Cached activations of these tokens: before a call those of the template, after it the recomputed ones.

    Tensors longer than a grid have `num_front` tokens before those of the image.
    """
    found = []
    for name, one in kept.items():
        if not name.endswith((MAP, NORM)):
            image = one if one.shape[1] in watched else one[:, num_front:]
            found.append(image.flatten(2).flatten(0, 1)[watched[image.shape[1]]].flatten())
    return torch.cat(found)


def stale_error(before: torch.Tensor, after: torch.Tensor) -> torch.Tensor:
    """L2 norm of the difference, relative to the L2 norm of the cached values."""
    gone, size = (torch.linalg.vector_norm(one.float()) for one in (after.float() - before.float(), before))
    error: torch.Tensor = gone / size.clamp(min=1e-10)
    return error
