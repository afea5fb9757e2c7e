"""What a bound network keeps of a step: one block of memory, filled by one kernel, with a view for every name."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import lru_cache
from importlib import import_module
from typing import Any

import torch

from takeup.serving.engines.diffusers.masked.pages import Page
from takeup.serving.engines.templates.packing import GROUP

__all__ = ["Flat", "compile_modules", "flatten", "put", "release_modules"]

HIGHEST, SMALLEST = 127, 1e-30
MOST_SHAPES = 1024
"""For which equal blocks are compiled; beyond its usual number torch would no longer compile, and say nothing."""


class Flat:
    """The kept activations of a step."""

    def __init__(self, page: Page) -> None:
        like = next(iter(page.values()))
        sizes = {name: kept.numel() for name, kept in page.items()}
        self.values = torch.empty(sum(sizes.values()), dtype=like.dtype, device=like.device)
        parts = torch.split(self.values, list(sizes.values()))
        self.views = {name: part.view(page[name].shape) for (name, part) in zip(sizes, parts, strict=True)}
        self.chunk = math.gcd(*(kept[0, 0].numel() for kept in page.values()))

    def pieces(self, tokens: Mapping[int, torch.Tensor], num_front: int = 0) -> torch.Tensor:
        """Where these tokens of all views lie, in pieces of `chunk` numbers: `tokens` of the flattened batch, by grid.

        `num_front` tokens stand before those of the grid, in views that have more.
        """
        starts: dict[tuple[int, int], list[int]] = {}
        for view in self.views.values():
            kind = view.shape[1], view[0, 0].numel() // self.chunk
            starts.setdefault(kind, []).append(view.storage_offset() // self.chunk)
        found = []
        for (length, each), begins in starts.items():
            front = 0 if length in tokens else num_front
            own = tokens[length - front]
            placed = (own + (own // (length - front) + 1) * front)[:, None] * each
            inside = placed + torch.arange(each, device=own.device)
            found.append((torch.tensor(begins, device=own.device)[:, None, None] + inside).flatten())
        return torch.cat(found)

    def taken(self, pieces: torch.Tensor) -> torch.Tensor:
        """What lies there now."""
        return self.values.view(-1, self.chunk)[pieces]

    def cut(self, page: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        """All of it is needed."""
        return page

    @torch.no_grad()
    def fill(self, whole: torch.Tensor, scales: torch.Tensor) -> None:
        """From whole numbers of eight bits, a scale for each group."""
        _filler(self.values.is_cuda)(self.values.view(-1, GROUP), whole, scales)


def flatten(page: Page) -> tuple[torch.Tensor, torch.Tensor]:
    """A page as `Flat` is filled from it."""
    groups = torch.cat([kept.reshape(-1, GROUP) for kept in page.values()])
    scales = (groups.abs().amax(dim=-1, keepdim=True).float() / HIGHEST).clamp(min=SMALLEST).to(torch.bfloat16)
    return (groups.float() / scales.float()).round().clamp(-HIGHEST, HIGHEST).to(torch.int8), scales


def put(kept: torch.Tensor, places: torch.Tensor, tokens: torch.Tensor) -> None:
    """Write the tokens that were computed into what is kept of all."""
    _put(kept, places, tokens)


def _written(kept: torch.Tensor, places: torch.Tensor, tokens: torch.Tensor) -> None:
    width = kept.numel() // (kept.shape[0] * kept.shape[1])
    kept.view(-1, width).index_copy_(0, places, tokens.reshape(-1, width))


# An operation of its own, because compilers would otherwise copy all that is kept, there and back.
_put: Any = torch.library.custom_op(
    "takeup::put", _written, mutates_args=("kept",), schema="(Tensor(a!) kept, Tensor places, Tensor tokens) -> ()"
)
_put.register_fake(lambda kept, places, tokens: None)


def compile_modules(network: Any, kinds: frozenset[str], options: dict[str, Any]) -> list[Any]:
    """Have modules of these kinds compiled when they are first called; which these are."""
    dynamo = import_module("torch._dynamo").config
    dynamo.recompile_limit = max(dynamo.recompile_limit, MOST_SHAPES)
    dynamo.accumulated_recompile_limit = max(dynamo.accumulated_recompile_limit, MOST_SHAPES)
    found = [one for one in network.modules() if type(one).__name__ in kinds]
    for one in found:
        one.compile(dynamic=False, options=options)
    return found


def release_modules(modules: list[Any]) -> None:
    """Call them as they are again; compiled code is kept for those that are alike."""
    for one in modules:
        one._compiled_call_impl = None


def _fill(values: torch.Tensor, whole: torch.Tensor, scales: torch.Tensor) -> None:
    values.copy_(whole * scales.to(values.dtype))


@lru_cache(maxsize=2)
def _filler(compiled: bool) -> Callable[..., None]:
    """On an accelerator compiled into one kernel: two would write everything twice."""
    return torch.compile(_fill, dynamic=False) if compiled else _fill
