"""GEGLU matmul as a persistent Triton kernel.

Tiles are loaded and stored by the copy engine of the device (tensor descriptors), so nothing is masked. Values and
their gates are one tile, loaded and multiplied together, of which only the product of its halves is written. There are
as many programs as the device runs concurrently, each of which loops over tiles: the next one is loaded while the last
one is gated.
"""

# ruff: noqa: PLR0913, PLR0917  kernels take numbers, and branch when they are compiled
# mypy: disable-error-code="no-untyped-def, untyped-decorator"
from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import Any, NamedTuple

import torch

from takeup.serving.engines.diffusers.device.fast.language import tl, triton
from takeup.serving.engines.diffusers.device.fast.rows import gelu

TOGETHER = 16
"""Tiles of rows that follow each other, so that they find the same weights in the cache."""


class Tile(NamedTuple):
    """Rows and outputs of a tile, inputs per iteration, warps, pipeline stages, concurrent programs per SM."""

    rows: int
    outs: int
    ins: int
    num_warps: int
    num_stages: int
    num_beside: int


@triton.jit
def _multiply(
    x,
    weight,
    bias,
    out,
    num_rows,
    num_out,
    num_in,
    rows: tl.constexpr,
    outs: tl.constexpr,
    ins: tl.constexpr,
    together: tl.constexpr,
):
    num_tiles, num_across = tl.cdiv(num_rows, rows), num_out // outs
    for number in tl.range(tl.program_id(0), num_tiles * num_across, tl.num_programs(0), flatten=True):
        band = number // (together * num_across)
        height = tl.minimum(num_tiles - band * together, together)
        inside_band = number % (together * num_across)
        row = (band * together + inside_band % height) * rows
        column = (inside_band // height) * outs
        total = tl.zeros((rows, 2 * outs), tl.float32)
        for start in range(0, num_in, ins):
            both = weight.load([0, column, start]).reshape(2 * outs, ins)
            total = tl.dot(x.load([row, start]), both.T, total)
        values, gates = tl.split(tl.permute(tl.reshape(total, (rows, 2, outs)), (0, 2, 1)))
        lane = column + tl.arange(0, outs)
        values += tl.load(bias + lane).to(tl.float32)[None, :]
        gates += tl.load(bias + num_out + lane).to(tl.float32)[None, :]
        out.store([row, column], (values * gelu(gates)).to(out.dtype))


def gated_product(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, tile: Tile) -> torch.Tensor:
    """The matmul with the first half of the weights, times the GELU of that with the second half."""
    descriptor: Any = import_module("triton.tools.tensor_descriptor").TensorDescriptor
    lines, halves = x.reshape(-1, x.shape[-1]), weight.view(2, -1, x.shape[-1])
    num_out = halves.shape[1]
    out = x.new_empty((*x.shape[:-1], num_out))
    num_tiles = triton.cdiv(len(lines), tile.rows) * (num_out // tile.outs)
    _multiply[(min(num_tiles, _num_processors(x.device) * tile.num_beside),)](
        descriptor.from_tensor(lines, [tile.rows, tile.ins]),
        descriptor.from_tensor(halves, [2, tile.outs, tile.ins]),
        bias,
        descriptor.from_tensor(out.view(-1, num_out), [tile.rows, tile.outs]),
        len(lines),
        num_out,
        x.shape[-1],
        rows=tile.rows,
        outs=tile.outs,
        ins=tile.ins,
        together=TOGETHER,
        num_warps=tile.num_warps,
        num_stages=tile.num_stages,
    )
    return out


@cache
def _num_processors(device: torch.device) -> int:
    count: int = torch.cuda.get_device_properties(device).multi_processor_count
    return count
