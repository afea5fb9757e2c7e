"""Norms and products of a transformer block, each in its fastest way; elsewhere than on CUDA, in words of torch.

Libraries choose the tiles of a product by its size, and well for large ones. Where half of the rows are silent, their
tiles fill half of a device: smaller ones are tried beside. A gate behind a product reads back what was just written;
computed together it is not written at all. Whether that is faster is measured, not assumed.
"""

from __future__ import annotations

from functools import partial
from importlib import import_module

import torch
from torch.nn.functional import gelu, linear
from torch.nn.functional import layer_norm as plain_layer_norm

from takeup.serving.engines.diffusers.device.choices import CHOICES, Way, described

__all__ = ["add_product", "gated_product", "normed", "product"]

FAST = "takeup.serving.engines.diffusers.device.fast"
TILES = ((128, 64, 64, 4, 4), (64, 128, 64, 4, 4), (64, 64, 128, 4, 3))
GATED_TILES = ((128, 128, 64, 8, 4), (128, 128, 64, 8, 3), (256, 64, 64, 8, 4), (128, 64, 64, 4, 3))
"""Rows, outputs and inputs of a tile, warps, stages: see `Tile`. With a gate a program has two of them."""


def normed(
    x: torch.Tensor, shift: torch.Tensor | None, weight: torch.Tensor, bias: torch.Tensor, eps: float
) -> torch.Tensor:
    """The layer norm of `x` (rows, tokens, width) with `shift` added to every token."""
    given = x, shift, weight, bias, eps
    if not x.is_cuda:
        return _plain_norm(*given)
    ways: dict[str, Way] = {"as torch does": _plain_norm, "own": partial(_own, "rows", "layer_norm")}
    return CHOICES.way("norm", (described(x), shift is None), ways, lambda: given)(*given)


def product(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """`x` times the weights, without a bias."""
    if not x.is_cuda:
        return linear(x, weight)
    ways: dict[str, Way] = {"as torch does": linear}
    ways |= {_named(tile): partial(_tiled, "product", tile) for tile in _fitting(x, weight, TILES)}
    return CHOICES.way("product", described(x, weight), ways, lambda: (x, weight))(x, weight)


def add_product(into: torch.Tensor, x: torch.Tensor, weight: torch.Tensor) -> None:
    """Add `x` times the weights to `into` (rows, tokens, outputs), whose rows may lie apart."""
    if not x.is_cuda or not into.is_contiguous():
        _plain_add(into, x, weight)
        return
    ways: dict[str, Way] = {"as torch does": _plain_add}
    ways |= {_named(tile): partial(_tiled, "added_product", tile) for tile in _fitting(x, weight, TILES)}
    CHOICES.way("sum", described(into, x, weight), ways, lambda: (into.clone(), x, weight))(into, x, weight)


def gated_product(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """Half of the outputs, times the gelu of the other half."""
    given = x, weight, bias
    if not x.is_cuda:
        return _plain_gate(*given)
    ways: dict[str, Way] = {"as torch does": _plain_gate, "own gate": _gate_behind}
    half = weight[: len(weight) // 2]
    ways |= {_named(tile): partial(_tiled, "gated_product", tile) for tile in _fitting(x, half, GATED_TILES)}
    return CHOICES.way("gate", described(x, weight), ways, lambda: given)(*given)


# The usual ways -------------------------------------------------------------------------------------------------------


def _plain_norm(
    x: torch.Tensor, shift: torch.Tensor | None, weight: torch.Tensor, bias: torch.Tensor, eps: float
) -> torch.Tensor:
    shifted = x if shift is None else (x + shift).to(x.dtype)
    return plain_layer_norm(shifted, x.shape[-1:], weight, bias, eps).contiguous()


def _plain_add(into: torch.Tensor, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    if into.is_contiguous():
        into.view(-1, into.shape[-1]).addmm_(x.reshape(-1, x.shape[-1]), weight.t())
    else:
        into.baddbmm_(x, weight.t().expand(len(into), -1, -1))
    return into


def _plain_gate(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    value, gate = linear(x, weight, bias).chunk(2, dim=-1)
    return value * gelu(gate)


# Ways of our own ------------------------------------------------------------------------------------------------------


def _gate_behind(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return _own("rows", "gated", linear(x, weight, bias))


def _own(module: str, name: str, *given: object) -> torch.Tensor:
    found: torch.Tensor = getattr(import_module(f"{FAST}.{module}"), name)(*given)
    return found


def _tiled(name: str, tile: tuple[int, ...], *given: object) -> torch.Tensor:
    make = import_module(f"{FAST}.products").Tile
    return _own("products", name, *given, make(*tile))


def _fitting(x: torch.Tensor, weight: torch.Tensor, tiles: tuple[tuple[int, ...], ...]) -> list[tuple[int, ...]]:
    """Tiles that divide outputs and inputs; tokens must lie one behind the other."""
    num_out, num_in = weight.shape
    fits = x.is_contiguous() and weight.is_contiguous()
    return [tile for tile in tiles if fits and num_out % tile[1] == 0 and num_in % tile[2] == 0]


def _named(tile: tuple[int, ...]) -> str:
    return "own {}x{}x{}, {} warps, {} stages".format(*tile)
