"""Triton kernel that gathers neighbours (im2col); only called on CUDA tensors."""

from __future__ import annotations

from functools import lru_cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch

from takeup.serving.engines.diffusers.masked.gather import Affine

triton: Any = import_module("triton") if find_spec("triton") else None
tl: Any = import_module("triton.language") if find_spec("triton") else None
NUM_PIXELS, NUM_CHANNELS = 32, 64


def _gather(  # type: ignore[no-untyped-def]  # noqa: PLR0913, PLR0917  the compiler would look for annotations
    tokens,
    rim,
    table,
    scale,
    shift,
    made,
    num_made,
    per_row,
    num_tokens,
    num_rim,
    width: tl.constexpr,
    has_norm: tl.constexpr,
    pixels: tl.constexpr,
    channels: tl.constexpr,
):
    mine = tl.program_id(0) * pixels + tl.arange(0, pixels)
    channel = tl.program_id(1) * channels + tl.arange(0, channels)
    is_channel = (channel < width)[None, :]
    source = tl.load(table + mine, mask=mine < num_made, other=0).to(tl.int32)
    is_fresh = (source < num_tokens)[:, None]
    is_rim = ((source >= num_tokens) & (source < num_tokens + num_rim))[:, None]
    place = source.to(tl.int64)[:, None] * width + channel[None, :]
    value = tl.load(tokens + place, mask=is_fresh & is_channel, other=0.0).to(tl.float32)
    if has_norm:
        norm = (mine // per_row)[:, None] * width + channel[None, :]
        is_normed = is_fresh & is_channel & (mine < num_made)[:, None]
        value = value * tl.load(scale + norm, mask=is_normed, other=0.0)
        value = value + tl.load(shift + norm, mask=is_normed, other=0.0)
        value = value * tl.sigmoid(value)
    kept = tl.load(rim + place - num_tokens * width, mask=is_rim & is_channel, other=0.0).to(tl.float32)
    value = tl.where(is_fresh, value, kept)
    out = mine.to(tl.int64)[:, None] * width + channel[None, :]
    tl.store(made + out, value.to(made.dtype.element_ty), mask=(mine < num_made)[:, None] & is_channel)


@lru_cache(maxsize=1)
def _gather_kernel() -> Any:
    return triton.jit(_gather)


def gathered(tokens: torch.Tensor, rim: torch.Tensor, table: torch.Tensor, norm: Affine | None) -> torch.Tensor:
    """Same as `gather.plain`, up to rounding."""
    num_rows, per_row, width = tokens.shape
    tokens, num_made = tokens.contiguous(), table.numel()
    made = tokens.new_empty((table.shape[0], table.shape[1] * width))
    scale, shift = (one.contiguous() for one in norm) if norm is not None else (tokens, tokens)
    grid = (triton.cdiv(num_made, NUM_PIXELS), triton.cdiv(width, NUM_CHANNELS))
    _gather_kernel()[grid](
        tokens,
        rim.contiguous(),
        table,
        scale,
        shift,
        made,
        num_made,
        num_made // num_rows,
        num_rows * per_row,
        len(rim),
        width,
        norm is not None,
        NUM_PIXELS,
        NUM_CHANNELS,
    )
    return made
