"""KV cache of one step for CUDA-graph calls: one contiguous allocation, with a view for every name."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch

from takeup.serving.engines.diffusers.masked.pages import Page


class FlatKvCache:
    """The cached activations of a step, zero-initialized, shaped like `page`."""

    def __init__(self, page: Page) -> None:
        like = next(iter(page.values()))
        sizes = {name: kept.numel() for name, kept in page.items()}
        self.values = torch.zeros(sum(sizes.values()), dtype=like.dtype, device=like.device)
        parts = torch.split(self.values, list(sizes.values()))
        self.views = {name: part.view(page[name].shape) for (name, part) in zip(sizes, parts, strict=True)}
        self.chunk = math.gcd(*(kept[0, 0].numel() for kept in page.values()))

    def pieces(self, tokens: Mapping[int, torch.Tensor], num_front: int = 0) -> torch.Tensor:
        """Indices of these tokens in all views, in units of `chunk` elements; `tokens` of the flattened batch, by grid.

        Views longer than a grid have `num_front` tokens before those of the grid.
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
        """Copy of the current values at these indices."""
        return self.values.view(-1, self.chunk)[pieces]


def write_tokens(kept: torch.Tensor, places: torch.Tensor, tokens: torch.Tensor) -> None:
    """Write the computed tokens into the cached tensor of all tokens, in place."""
    _put(kept, places, tokens)


def _written(kept: torch.Tensor, places: torch.Tensor, tokens: torch.Tensor) -> None:
    width = kept.numel() // (kept.shape[0] * kept.shape[1])
    kept.view(-1, width).index_copy_(0, places, tokens.reshape(-1, width))


# A custom op, because the compiler would otherwise copy the whole cached tensor, there and back.
_put: Any = torch.library.custom_op(
    "takeup::put", _written, mutates_args=("kept",), schema="(Tensor(a!) kept, Tensor places, Tensor tokens) -> ()"
)
_put.register_fake(lambda kept, places, tokens: None)
