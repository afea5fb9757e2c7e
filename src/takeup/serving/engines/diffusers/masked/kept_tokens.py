"""Cached activations of one step for CUDA-graph calls of Flux, at fixed addresses, and the token positions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from takeup.serving.engines.diffusers.masked.brought import LoadedPage, page_rows
from takeup.serving.engines.diffusers.masked.call import TokenIndices
from takeup.serving.engines.diffusers.masked.flat import FlatKvCache
from takeup.serving.engines.diffusers.masked.pages import OUT, copy_named
from takeup.serving.engines.diffusers.masked.tables import IndexTables


class TokenTables(IndexTables):
    """Positions of image tokens in a sequence that starts with the text; `turns` are their rotary embeddings."""

    def __init__(self, network: Any, places: Mapping[int, TokenIndices], ids: Mapping[str, torch.Tensor]) -> None:
        self.num_text = len(ids["txt_ids"])
        self.own = places[len(ids["img_ids"])]
        self.behind = self.own.after(self.num_text)
        table = network.pos_embed(torch.cat([ids["txt_ids"], ids["img_ids"]]))
        self.turns = table[0][self.behind.by_row], table[1][self.behind.by_row]

    def tensors(self) -> Iterator[torch.Tensor]:
        yield from (self.own.by_row, self.own.flat, self.behind.by_row, self.behind.flat, *self.turns)


class FluxCache:
    """Buffer filled for every step. Keys and values have space for the text, which every step recomputes."""

    def __init__(self, flat: FlatKvCache, num_text: int) -> None:
        self.flat, self._num_text = flat, num_text
        self._views_of: dict[range, dict[str, torch.Tensor]] = {}

    @torch.no_grad()
    def load(self, pages: Sequence[LoadedPage]) -> None:
        """Copy the pages of the templates in, each to its own rows of the batch."""
        for rows, one in page_rows(pages):
            copy_named(one.page, self._into(rows))

    @torch.no_grad()
    def finish(self, pages: Sequence[LoadedPage]) -> None:
        """Compute keys and values of blocks whose inputs were loaded instead."""
        for rows, one in page_rows(pages):
            copy_named(one.made(), self._into(rows))

    def _into(self, rows: range) -> dict[str, torch.Tensor]:
        if rows not in self._views_of:
            own = slice(rows.start, rows.stop)
            fronts = {name: 0 if name == OUT else self._num_text for name in self.flat.views}
            self._views_of[rows] = {name: view[own, fronts[name] :] for name, view in self.flat.views.items()}
        return self._views_of[rows]
