"""Columns in calls with hooks: record the activations that they need, and read them from the template."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import torch

from takeup.serving.engines.diffusers.masked.call import HookState, TokenIndices
from takeup.serving.engines.diffusers.masked.columns import ConvolutionInputs, affine_of, tokens_of
from takeup.serving.engines.diffusers.masked.gather import Affine
from takeup.serving.engines.diffusers.masked.neighbours import GatherTable, Resampling, entry_table, gather_tables
from takeup.serving.engines.diffusers.masked.pages import MAP, NORM, OUT
from takeup.serving.engines.diffusers.masked.tokens import Grid, grids_of


class HookSource:
    """Source of columns that reads the cached activations of a `HookState`. Tables are rebuilt only for other places."""

    def __init__(self, call: HookState) -> None:
        self._call = call
        self._places: Mapping[int, TokenIndices] = {}
        self._arounds: dict[tuple[int, Resampling], GatherTable] = {}
        self._size: Grid = (0, 0)

    def enter(self, size: Grid) -> torch.Tensor:
        if self._places is not self._call.places or size != self._size:
            grids = [grid for grid in grids_of(size) if grid[0] * grid[1] in self._call.places]
            self._arounds = gather_tables(self._call.places, grids)
            self._places, self._size = self._call.places, size
        return entry_table(self._call.places[size[0] * size[1]], size)

    def around(self, name: str, move: Resampling) -> ConvolutionInputs:
        kept = self._call.kept[name + MAP]
        found = self._arounds[kept.shape[1], move]
        return kept.reshape(-1, kept.shape[2])[found.rim], found.table

    def affine(self, name: str) -> Affine:
        scale, shift = self._call.kept[name + NORM][:, 0].chunk(2, dim=1)
        return scale, shift

    def leave(self, tokens: torch.Tensor) -> torch.Tensor:
        every = self._call.fill(OUT, tokens)
        return every.transpose(1, 2).view(len(every), -1, *self._size)


def recorders(network: Any, call: HookState) -> list[Any]:
    """Register hooks that record the activations that columns need; returns their handles."""
    handles = [
        module.register_forward_pre_hook(partial(_record, call, name, make))
        for name, module, make in _kept_modules(network)
    ]
    return [*handles, network.conv_out.register_forward_hook(partial(_record_output, call))]


def _kept_modules(network: Any) -> Iterator[tuple[str, Any, Callable[[Any, torch.Tensor], torch.Tensor]]]:
    """Names, modules whose input is recorded, and the function applied to that input."""
    for name, module in network.named_modules():
        kind = type(module).__name__
        if kind == "GroupNorm":
            yield name + NORM, module, affine_of
        elif kind == "ResnetBlock2D":
            yield from ((f"{name}.{one}{MAP}", getattr(module, one), _pixels) for one in ("conv1", "conv2"))
        elif kind == "Downsample2D":
            yield f"{name}.conv{MAP}", module.conv, _pixels
        elif kind == "Upsample2D":
            yield f"{name}.conv{MAP}", module, _pixels
    yield f"conv_out{MAP}", network.conv_out, _pixels


def _pixels(module: Any, sample: torch.Tensor) -> torch.Tensor:
    return tokens_of(sample).contiguous()


def _record(call: HookState, name: str, make: Any, module: Any, inputs: tuple[Any, ...]) -> None:
    call.recorded[name] = make(module, inputs[0]).detach()


def _record_output(call: HookState, module: Any, inputs: Any, output: torch.Tensor) -> None:
    call.recorded[OUT] = _pixels(module, output).detach()
