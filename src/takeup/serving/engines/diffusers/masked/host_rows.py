"""Gather rows of many tensors in pinned host memory with a device kernel, so that only these rows cross the bus.

One kernel for all tensors, by address: launching one per tensor would take longer than the transfer.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch

triton: Any = import_module("triton") if find_spec("triton") else None
tl: Any = import_module("triton.language") if find_spec("triton") else None
NUM_ROWS, ROW_CHANNELS = 16, 128


HostRows = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
"""A table on the host, which rows of it, and a table on the device to which they go."""


def _copy(told, rows: tl.constexpr, channels: tl.constexpr, kind: tl.constexpr):  # type: ignore[no-untyped-def]
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


@lru_cache(maxsize=1)
def _rows_kernel() -> Any:
    return triton.jit(_copy)


def fetch(wanted: Sequence[HostRows]) -> None:
    """Launch the copy of all rows; asynchronous."""
    numbers = [(*(one.data_ptr() for one in rows), len(rows[1]), rows[2].shape[1]) for rows in wanted]
    into = wanted[0][2]
    told = torch.tensor(numbers, dtype=torch.int64).pin_memory().to(into.device, non_blocking=True)
    most, widest = max(count for *_, count, _ in numbers), max(width for *_, width in numbers)
    grid = (triton.cdiv(most, NUM_ROWS), triton.cdiv(widest, ROW_CHANNELS), len(wanted))
    kinds = {torch.bfloat16: tl.bfloat16, torch.float16: tl.float16, torch.float32: tl.float32}
    _rows_kernel()[grid](told, NUM_ROWS, ROW_CHANNELS, kinds[into.dtype])
