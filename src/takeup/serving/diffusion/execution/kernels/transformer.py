"""Kernels of transformer blocks: layer norm with a pending bias, GEGLU gates, and a persistent GEGLU matmul."""

# ruff: noqa: PLR0913, PLR0917  kernels take numbers, and branch when they are compiled
# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from functools import cache
from importlib import import_module
from typing import Any, NamedTuple

import torch

from takeup.serving.diffusion.execution.kernels import tl, triton

WIDEST_GATE, GATED_TOKENS = 1024, 2


@triton.jit
def _norm(
    x,
    shift,
    weight,
    bias,
    out,
    num_tokens,
    per_row,
    row_step,
    token_step,
    eps,
    width: tl.constexpr,
    lanes: tl.constexpr,
    tokens: tl.constexpr,
):
    token = tl.program_id(0) * tokens + tl.arange(0, tokens)
    lane = tl.arange(0, lanes)
    is_lane = lane < width
    inside = (token < num_tokens)[:, None] & is_lane[None, :]
    place = (token // per_row).to(tl.int64) * row_step + (token % per_row) * token_step
    value = tl.load(x + place[:, None] + lane[None, :], mask=inside, other=0.0).to(tl.float32)
    value += tl.load(shift + lane, mask=is_lane, other=0.0)[None, :]
    mean = tl.sum(value, 1) / width
    centred = tl.where(inside, value - mean[:, None], 0.0)
    scale = 1 / tl.sqrt(tl.sum(centred * centred, 1) / width + eps)
    factor = tl.load(weight + lane, mask=is_lane, other=0.0).to(tl.float32)
    added = tl.load(bias + lane, mask=is_lane, other=0.0).to(tl.float32)
    answer = centred * scale[:, None] * factor[None, :] + added[None, :]
    to = token.to(tl.int64)[:, None] * width + lane[None, :]
    tl.store(out + to, answer.to(out.dtype.element_ty), mask=inside)


def layer_norm(
    x: torch.Tensor,
    shift: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor,
    eps: float,
    tokens: int,
    num_warps: int,
) -> torch.Tensor:
    """The layer norm of `x` (rows, tokens, width) with `shift` added to every token; rows need not be contiguous.

    `tokens` and `num_warps` are per program.
    """
    num_rows, per_row, width = x.shape
    out = torch.empty((num_rows, per_row, width), dtype=x.dtype, device=x.device)
    _norm[(triton.cdiv(num_rows * per_row, tokens),)](
        x,
        shift,
        weight,
        bias,
        out,
        num_rows * per_row,
        per_row,
        x.stride(0),
        x.stride(1),
        eps,
        width=width,
        lanes=triton.next_power_of_2(width),
        tokens=tokens,
        num_warps=num_warps,
    )
    return out


@triton.jit
def gelu(gate):
    """GELU without the tanh approximation: off by less than 1e-6, with half the work of an error function.

    Half of one over the sixteenth power of this polynomial is the tail of the normal distribution beyond `size`
    (Abramowitz and Stegun, 26.2.19).
    """
    size = tl.abs(gate)
    power = size * 0.0000053830 + 0.0000488906
    power = power * size + 0.0000380036
    power = power * size + 0.0032776263
    power = power * size + 0.0211410061
    power = power * size + 0.0498673470
    power = power * size + 1
    power = power * power
    power = power * power
    power = power * power
    power = power * power
    return tl.maximum(gate, 0.0) - 0.5 * size / power


@triton.jit
def _gate(x, out, num_tokens, width, tokens: tl.constexpr, lanes: tl.constexpr):
    token = tl.program_id(1) * tokens + tl.arange(0, tokens)[:, None].to(tl.int64)
    lane = tl.program_id(0) * lanes + tl.arange(0, lanes)[None, :]
    inside = token < num_tokens
    value = tl.load(x + token * (2 * width) + lane, mask=inside, other=0.0).to(tl.float32)
    gate = tl.load(x + token * (2 * width) + width + lane, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + token * width + lane, (value * gelu(gate)).to(out.dtype.element_ty), mask=inside)


def gated(x: torch.Tensor) -> torch.Tensor:
    """The first half of the last dimension, times the GELU of the second."""
    width = x.shape[-1] // 2
    num_tokens = x.numel() // x.shape[-1]
    lanes = min(WIDEST_GATE, width & -width)  # a power of two that divides the width
    out = x.new_empty((*x.shape[:-1], width))
    _gate[(width // lanes, triton.cdiv(num_tokens, GATED_TOKENS))](
        x, out, num_tokens, width, tokens=GATED_TOKENS, lanes=lanes
    )
    return out


# GEGLU matmul as a persistent Triton kernel ---------------------------------------------------------------------------
#
# Tiles are loaded and stored by the copy engine of the device (tensor descriptors), so nothing is masked. Values and
# their gates are one tile, loaded and multiplied together, of which only the product of its halves is written. There
# are as many programs as the device runs concurrently, each of which loops over tiles: the next one is loaded while
# the last one is gated.

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
