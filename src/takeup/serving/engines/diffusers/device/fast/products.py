"""Products with a gate at their end.

Tiles are brought by the copy engine of the device (tensor descriptors), so nothing is masked on the way in. A program
computes a tile of values and the tile of their gates, and neither is ever written down.
"""

# ruff: noqa: PLR0913, PLR0917  kernels take numbers, and branch when they are compiled
# mypy: disable-error-code="no-untyped-def, untyped-decorator"
from __future__ import annotations

from importlib import import_module
from typing import Any, NamedTuple

import torch

from takeup.serving.engines.diffusers.device.fast.language import tl, triton
from takeup.serving.engines.diffusers.device.fast.rows import gelu

__all__ = ["Tile", "gated_product"]

TOGETHER = 8
"""Tiles of rows that follow each other, so that they find the same weights in the cache."""


class Tile(NamedTuple):
    """Rows and outputs of one program, inputs of one step, warps, steps under way."""

    rows: int
    outs: int
    ins: int
    num_warps: int
    num_stages: int


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
    program = tl.program_id(0)
    num_tiles, num_across = tl.cdiv(num_rows, rows), tl.cdiv(num_out, outs)
    band = program // (together * num_across)
    height = tl.minimum(num_tiles - band * together, together)
    inside_band = program % (together * num_across)
    row = (band * together + inside_band % height) * rows
    column = (inside_band // height) * outs
    total = tl.zeros((rows, outs), tl.float32)
    gates = tl.zeros((rows, outs), tl.float32)
    for start in range(0, num_in, ins):
        tile = x.load([row, start])
        total = tl.dot(tile, weight.load([column, start]).T, total)
        gates = tl.dot(tile, weight.load([num_out + column, start]).T, gates)
    lane = column + tl.arange(0, outs)
    total += tl.load(bias + lane).to(tl.float32)[None, :]
    gates += tl.load(bias + num_out + lane).to(tl.float32)[None, :]
    total = total * gelu(gates)
    line = row + tl.arange(0, rows)
    place = out + line.to(tl.int64)[:, None] * num_out + lane[None, :]
    tl.store(place, total.to(out.dtype.element_ty), mask=(line < num_rows)[:, None])


def gated_product(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, tile: Tile) -> torch.Tensor:
    """The product with the first half of the weights, times the gelu of that with the second half."""
    descriptor: Any = import_module("triton.tools.tensor_descriptor").TensorDescriptor
    lines, num_out = x.reshape(-1, x.shape[-1]), weight.shape[0] // 2
    out = x.new_empty((*x.shape[:-1], num_out))
    num_programs = triton.cdiv(len(lines), tile.rows) * (num_out // tile.outs)
    _multiply[(num_programs,)](
        descriptor.from_tensor(lines, [tile.rows, tile.ins]),
        descriptor.from_tensor(weight, [tile.outs, tile.ins]),
        bias,
        out,
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
