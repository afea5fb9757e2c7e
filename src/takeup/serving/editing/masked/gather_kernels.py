"""Triton kernels that gather: neighbours of pixels (im2col), and rows of tensors in pinned host memory.

Only called on CUDA tensors.
"""

# ruff: noqa: PLR0913, PLR0917  kernels take numbers, and branch when they are compiled
# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from __future__ import annotations

from collections.abc import Sequence

import torch

from takeup.serving.diffusion.execution.kernels import tl, triton
from takeup.serving.editing.masked.masked_convolutions import Affine

NUM_PIXELS, NUM_CHANNELS = 32, 64


@triton.jit
def _gather(
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


def gathered(tokens: torch.Tensor, rim: torch.Tensor, table: torch.Tensor, norm: Affine | None) -> torch.Tensor:
    """Same as `gather.plain`, up to rounding."""
    num_rows, per_row, width = tokens.shape
    tokens, num_made = tokens.contiguous(), table.numel()
    made = tokens.new_empty((table.shape[0], table.shape[1] * width))
    scale, shift = (one.contiguous() for one in norm) if norm is not None else (tokens, tokens)
    grid = (triton.cdiv(num_made, NUM_PIXELS), triton.cdiv(width, NUM_CHANNELS))
    _gather[grid](
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


# Gather rows of many tensors in pinned host memory with a device kernel, so that only these rows cross the bus --------
#
# One kernel for all tensors, by address: launching one per tensor would take longer than the transfer.

NUM_ROWS, ROW_CHANNELS = 16, 128


HostRows = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
"""A table on the host, which rows of it, and a table on the device to which they go."""


@triton.jit
def _copy(told, rows: tl.constexpr, channels: tl.constexpr, kind: tl.constexpr):
    mine = told + tl.program_id(2) * 5
    source = tl.load(mine).to(tl.pointer_type(kind))
    places = tl.load(mine + 1).to(tl.pointer_type(tl.int64))
    into = tl.load(mine + 2).to(tl.pointer_type(kind))
    num_rows, width = tl.load(mine + 3), tl.load(mine + 4)
    row = tl.program_id(0) * rows + tl.arange(0, rows)
    channel = tl.program_id(1) * channels + tl.arange(0, channels)
    inside = (row < num_rows)[:, None] & (channel < width)[None, :]
    place = tl.load(places + row, mask=row < num_rows, other=0)
    value = tl.load(source + place[:, None] * width + channel[None, :], mask=inside)
    tl.store(into + row[:, None] * width + channel[None, :], value, mask=inside)


def fetch(wanted: Sequence[HostRows]) -> None:
    """Launch the copy of all rows; asynchronous."""
    numbers = [(*(one.data_ptr() for one in rows), len(rows[1]), rows[2].shape[1]) for rows in wanted]
    into = wanted[0][2]
    told = torch.tensor(numbers, dtype=torch.int64).pin_memory().to(into.device, non_blocking=True)
    most, widest = max(count for *_, count, _ in numbers), max(width for *_, width in numbers)
    grid = (triton.cdiv(most, NUM_ROWS), triton.cdiv(widest, ROW_CHANNELS), len(wanted))
    kinds = {torch.bfloat16: tl.bfloat16, torch.float16: tl.float16, torch.float32: tl.float32}
    _copy[grid](told, NUM_ROWS, ROW_CHANNELS, kinds[into.dtype])
