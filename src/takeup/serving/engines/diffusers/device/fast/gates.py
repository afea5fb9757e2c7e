"""The gate of a feed-forward layer: one half of its input times the GELU of the other half."""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"
from __future__ import annotations

import torch

from takeup.serving.engines.diffusers.device.fast.language import tl, triton

__all__ = ["gated"]

LANES = 1024


@triton.jit
def _gate(x, out, width, lanes: tl.constexpr):
    token = tl.program_id(1).to(tl.int64)
    lane = tl.program_id(0) * lanes + tl.arange(0, lanes)
    value = tl.load(x + token * 2 * width + lane, mask=lane < width, eviction_policy="evict_first").to(tl.float32)
    gate = tl.load(x + (token * 2 + 1) * width + lane, mask=lane < width, eviction_policy="evict_first").to(tl.float32)
    gelu = 0.5 * gate * (1 + tl.erf(gate * 0.7071067811865476))
    tl.store(out + token * width + lane, (value * gelu).to(out.dtype.element_ty), mask=lane < width)


def gated(x: torch.Tensor) -> torch.Tensor:
    """The first half of the last dimension times the GELU of the second half."""
    width = x.shape[-1] // 2
    out = x.new_empty((*x.shape[:-1], width))
    _gate[(triton.cdiv(width, LANES), out.numel() // width)](x, out, width, lanes=LANES)
    return out
