"""Weighted sums of tensors in one pass over memory on CUDA; plain torch elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module

import torch

SUM_KERNELS = "takeup.serving.engines.diffusers.device.fast.sums"


def weighted_sum(into: torch.Tensor, sources: Sequence[torch.Tensor], scales: Sequence[float]) -> None:
    """Overwrite `into` with the sum of `sources`, each times its scale; zeros if there are none."""
    if into.is_cuda and _can_sum(into, sources):
        import_module(SUM_KERNELS).add_up(into, sources, scales)
        return
    into.zero_()
    for source, scale in zip(sources, scales, strict=True):
        into.add_(source, alpha=scale)


def _can_sum(into: torch.Tensor, sources: Sequence[torch.Tensor]) -> bool:
    """Whether the Triton kernel applies: equal strides, no gaps, at most `MOST_SOURCES` tensors."""
    has_no_gaps = into.is_contiguous() or (into.ndim == 4 and into.is_contiguous(memory_format=torch.channels_last))
    alike = all(one.shape == into.shape and one.stride() == into.stride() for one in sources)
    return has_no_gaps and alike and 0 < len(sources) <= import_module(SUM_KERNELS).MOST_SOURCES
