"""Norms and matmuls of a transformer block, each autotuned on CUDA; plain torch elsewhere.

A separate gate reads back what the matmul has just written; fused, it is not written at all. Whether that is faster is
measured, not assumed. Matmuls without a gate are left to libraries: custom tiles were no faster.
"""

from __future__ import annotations

from functools import partial
from importlib import import_module

import torch
from torch.nn.functional import gelu, linear
from torch.nn.functional import layer_norm as plain_layer_norm

from takeup.serving.engines.diffusers.device.choices import AUTOTUNER, Implementation, shape_key

KERNELS = "takeup.serving.engines.diffusers.device.fast"
TILES = ((128, 128, 64, 8, 3, 1), (128, 64, 64, 4, 3, 2), (64, 64, 64, 4, 4, 3))
"""Rows, outputs and inputs of a tile, warps, stages, programs beside each other: see `Tile`."""

NORMED = ((2, 1), (2, 2), (4, 2), (4, 4))
"""How many tokens a program norms, with how many warps: with few, hardly any of them waits for another."""


def shifted_layer_norm(
    x: torch.Tensor, shift: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, eps: float
) -> torch.Tensor:
    """The layer norm of `x` (rows, tokens, width) with `shift` added to every token."""
    given = x, shift, weight, bias, eps
    if not x.is_cuda:
        return _plain_norm(*given)
    ways: dict[str, Implementation] = {"as torch does": _plain_norm}
    ways |= {f"own, {tokens} at a time, {warps} warps": partial(_own_norm, tokens, warps) for tokens, warps in NORMED}
    return AUTOTUNER.way("norm", shape_key(x), ways, lambda: given)(*given)


def add_matmul(into: torch.Tensor, x: torch.Tensor, weight: torch.Tensor) -> None:
    """Add `x` times the weights to `into` (rows, tokens, outputs), whose rows need not be contiguous."""
    if into.is_contiguous():
        into.view(-1, into.shape[-1]).addmm_(x.reshape(-1, x.shape[-1]), weight.t())
    else:
        into.baddbmm_(x, weight.t().expand(len(into), -1, -1))


def geglu_matmul(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """Half of the outputs, times the GELU of the other half."""
    given = x, weight, bias
    if not x.is_cuda:
        return _plain_gate(*given)
    ways: dict[str, Implementation] = {"as torch does": _plain_gate, "own gate": _gate_behind}
    ways |= {_tile_name(tile): partial(_tiled, tile) for tile in TILES if _tile_fits(tile, x, weight)}
    return AUTOTUNER.way("gate", shape_key(x, weight), ways, lambda: given)(*given)


# Reference implementations --------------------------------------------------------------------------------------------


def _plain_norm(
    x: torch.Tensor, shift: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, eps: float
) -> torch.Tensor:
    return plain_layer_norm((x + shift).to(x.dtype), x.shape[-1:], weight, bias, eps).contiguous()


def _plain_gate(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    value, gate = linear(x, weight, bias).chunk(2, dim=-1)
    return value * gelu(gate)


# Triton implementations -----------------------------------------------------------------------------------------------


def _own_norm(tokens: int, num_warps: int, *given: object) -> torch.Tensor:
    return _by_kernel("rows", "layer_norm", *given, tokens, num_warps)


def _gate_behind(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return _by_kernel("rows", "gated", linear(x, weight, bias))


def _tiled(tile: tuple[int, ...], *given: object) -> torch.Tensor:
    make = import_module(f"{KERNELS}.products").Tile
    return _by_kernel("products", "gated_product", *given, make(*tile))


def _by_kernel(module: str, name: str, *given: object) -> torch.Tensor:
    found: torch.Tensor = getattr(import_module(f"{KERNELS}.{module}"), name)(*given)
    return found


def _tile_fits(tile: tuple[int, ...], x: torch.Tensor, weight: torch.Tensor) -> bool:
    """Whether the tile divides outputs and inputs; `x` and the weights must be contiguous."""
    num_out, num_in = len(weight) // 2, weight.shape[1]
    return x.is_contiguous() and weight.is_contiguous() and num_out % tile[1] == 0 and num_in % tile[2] == 0


def _tile_name(tile: tuple[int, ...]) -> str:
    return "own {}x{}x{}, {} warps, {} stages, {} beside".format(*tile)
