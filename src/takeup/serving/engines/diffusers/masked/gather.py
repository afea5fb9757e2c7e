"""The nine neighbours of every computed pixel in one row, normed and activated: what a convolution multiplies."""

from __future__ import annotations

from importlib import import_module

import torch
from torch.nn.functional import silu

__all__ = ["Affine", "gathered", "plain"]

Affine = tuple[torch.Tensor, torch.Tensor]
"""A norm whose statistics are known: what each channel of each row is multiplied by, and what is added."""


@torch.no_grad()
def gathered(tokens: torch.Tensor, rim: torch.Tensor, table: torch.Tensor, norm: Affine | None) -> torch.Tensor:
    """`tokens` of each row, pixels of the `rim` and a zero, as the `table` says; the rim is normed already."""
    if tokens.is_cuda:
        made: torch.Tensor = import_module(f"{__package__}.gather_kernel").gathered(tokens, rim, table, norm)
        return made
    return plain(tokens, rim, table, norm)


def plain(tokens: torch.Tensor, rim: torch.Tensor, table: torch.Tensor, norm: Affine | None) -> torch.Tensor:
    """The same in words of torch."""
    if norm is not None:
        scale, shift = norm
        tokens = silu(tokens * scale[:, None] + shift[:, None]).to(tokens.dtype)
    width = tokens.shape[-1]
    every = torch.cat([tokens.reshape(-1, width), rim, rim.new_zeros(1, width)])
    return every[table].flatten(1)
