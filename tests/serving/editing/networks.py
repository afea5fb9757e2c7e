"""Calls of tiny networks, whole and masked, for tests of masked computation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from takeup.serving.diffusion.contract import BatchRows, Family, gather
from takeup.serving.diffusion.engine.families import family_of
from takeup.serving.diffusion.engine.tiny import tiny
from takeup.serving.editing.masked.hooks import MaskingHooks
from takeup.serving.editing.masked.tokens import HookState, grids_of, token_indices, working_copy
from takeup.serving.model import Request

__all__ = ["FAMILY_NAMES", "Network", "block_mask", "scattered_mask"]

FAMILY_NAMES = ("takeup/tiny-sd15", "takeup/tiny-sdxl", "takeup/tiny-sd3", "takeup/tiny-flux")


class Network:
    """A tiny network in the middle of some requests, with hooks. Close it, for tiny networks are shared."""

    def __init__(self, name: str, num_requests: int = 1, size_px: int = 32, *, convolutions: bool = False) -> None:
        self.family: Family = family_of(tiny(name))
        seeds = range(1, num_requests + 1)
        first = Request("a cat", num_steps=4, height_px=size_px, width_px=size_px)
        self.runs = [self.family.prepare(replace(first, seed=seed)) for seed in seeds]
        self.call = HookState()
        self.hooks = MaskingHooks(self.family.network, self.call, convolutions=convolutions)

    @property
    def rows(self) -> BatchRows:
        return gather(tuple(self.runs))

    @property
    def grid(self) -> tuple[int, int]:
        """Of tokens, at the finest level."""
        latents = self.runs[0].latents
        if latents.ndim == 3:
            side = int(latents.shape[1] ** 0.5)
            return side, side
        return int(latents.shape[2]), int(latents.shape[3])

    def whole(self) -> torch.Tensor:
        """Everything is computed and recorded."""
        self.call.mode, self.call.recorded = "record", {}
        return self.family.predict(self.rows)

    def masked(self, masks: Sequence[torch.Tensor], multiple: int = 1) -> torch.Tensor:
        """Only these tokens are computed, a mask for each request; the rest is what was recorded."""
        per_row = [mask for run, mask in zip(self.runs, masks, strict=True) for _ in range(run.num_rows)]
        self.call.mode, self.call.made = "masked", {}
        self.call.places = token_indices(per_row, grids_of(self.grid), multiple)
        self.call.kept = working_copy(self.call.recorded, self.hooks.fronted, self.call.num_front)
        return self.family.predict(self.rows)

    def at(self, prediction: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """What the prediction says of masked tokens."""
        if prediction.ndim == 3:
            return prediction[:, mask.flatten()]
        return prediction[:, :, mask]

    def close(self) -> None:
        self.hooks.remove()

    def __enter__(self) -> Network:
        return self

    def __exit__(self, *problem: Any) -> None:
        self.close()


def scattered_mask(grid: tuple[int, int], share: float, seed: int = 0) -> torch.Tensor:
    """Single tokens here and there."""
    drawn = torch.rand(grid, generator=torch.Generator().manual_seed(seed))
    return drawn <= drawn.flatten().kthvalue(max(1, round(share * drawn.numel()))).values


def block_mask(grid: tuple[int, int], share: float, seed: int = 0) -> torch.Tensor:
    """A square that is not in a corner, if there is room."""
    mask = torch.zeros(grid, dtype=torch.bool)
    side = max(1, round((share * mask.numel()) ** 0.5))
    first = min(1 + seed, grid[0] - side)
    mask[first : first + side, first : first + side] = True
    return mask
