"""Guidance by a negative branch, as the pipelines of diffusers compute it."""

from __future__ import annotations

import torch


def guided(prediction: torch.Tensor, scale: float, rescale: float = 0.0) -> torch.Tensor:
    """Guidance away from the first row, the negative branch; `rescale` mixes in the positive branch's deviation."""
    if len(prediction) == 1:
        return prediction
    negative, positive = prediction.chunk(2)
    mixed = negative + scale * (positive - negative)
    return _rescaled(mixed, positive, rescale) if rescale > 0 else mixed


def _rescaled(mixed: torch.Tensor, positive: torch.Tensor, share: float) -> torch.Tensor:
    """Lin et al., "Common Diffusion Noise Schedules and Sample Steps are Flawed", section 3.4."""
    dimensions = list(range(1, positive.ndim))
    spread = positive.std(dim=dimensions, keepdim=True) / mixed.std(dim=dimensions, keepdim=True)
    return share * (mixed * spread) + (1 - share) * mixed
