"""Im2col for masked convolutions: nine neighbours of every computed pixel in one row, after norm and activation."""

from __future__ import annotations

from importlib import import_module

import torch
from torch.nn.functional import silu

Affine = tuple[torch.Tensor, torch.Tensor]
"""A norm whose statistics are known: what each channel of each row is multiplied by, and what is added."""


@torch.no_grad()
def gathered(tokens: torch.Tensor, rim: torch.Tensor, table: torch.Tensor, norm: Affine | None) -> torch.Tensor:
    """Gather by `table` from `tokens`, pixels of the `rim` and a zero; the rim is already normalized."""
    if tokens.is_cuda:
        made: torch.Tensor = import_module(f"{__package__}.gather_kernel").gathered(tokens, rim, table, norm)
        return made
    return gather_reference(tokens, rim, table, norm)


def gather_reference(tokens: torch.Tensor, rim: torch.Tensor, table: torch.Tensor, norm: Affine | None) -> torch.Tensor:
    """Reference implementation in PyTorch."""
    if norm is not None:
        scale, shift = norm
        tokens = silu(tokens * scale[:, None] + shift[:, None]).to(tokens.dtype)
    width = tokens.shape[-1]
    every = torch.cat([tokens.reshape(-1, width), rim, rim.new_zeros(1, width)])
    return every[table].flatten(1)
