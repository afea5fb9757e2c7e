"""Masked U-Net calls for CUDA-graph capture: columns (`columns`) whose transformers compute in place (`lean`)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch.nn.functional import linear

from takeup.serving.engines.diffusers.device.compute import PreparedNetwork
from takeup.serving.engines.diffusers.device.lean import advance_block
from takeup.serving.engines.diffusers.device.ops import token_attention
from takeup.serving.engines.diffusers.masked.bound import GraphCall, MaskedBatch, like_all
from takeup.serving.engines.diffusers.masked.columns import (
    MaskedConvolutions,
    column,
    supports_masked_convolutions,
    tokens_of,
)
from takeup.serving.engines.diffusers.masked.flat import write_tokens
from takeup.serving.engines.diffusers.masked.kept_columns import ColumnTables, UnetCache
from takeup.serving.engines.diffusers.masked.pages import MAP, NORM


class UnetGraphCall(GraphCall):
    """One kind of masked call of a U-Net."""

    def __init__(self, prepared: PreparedNetwork, masked: MaskedBatch) -> None:
        assert isinstance(masked.tables, ColumnTables)
        tables, device = masked.tables.copied(), prepared.network.device
        like = like_all([one.whole() for one in masked.pages()], device, frozenset())
        kept = {name: one for name, one in like.items() if not name.endswith((MAP, NORM))}
        self._prepared = prepared
        self._kept = [UnetCache(like, tables, flat) for flat in masked.memory.flats(kept)]
        self._columns = _InPlaceConvolutions(prepared.network, self._kept[0])
        super().__init__(tables, self._kept, masked.memory)

    @contextmanager
    def computing(self, number: int) -> Iterator[None]:
        """Inside, the network computes masked pixels and reads cached activations from buffer `number`."""
        self._columns.source = self._kept[number]
        with self._prepared.plain():
            self._columns.put()
            try:
                yield
            finally:
                self._columns.remove()


class _InPlaceConvolutions(MaskedConvolutions):
    """Columns whose transformers compute in place."""

    def _transformer(self, name: str, module: Any, sample: torch.Tensor, *_: Any, **__: Any) -> Any:
        source: Any = self.source
        tokens = linear(tokens_of(module.norm(sample)), module.proj_in.weight.flatten(1), module.raised_bias)
        for number, block in enumerate(module.transformer_blocks):
            key, value = (source.views[f"{name}.{number}.{part}"] for part in "kv")
            places = source.tables.places[key.shape[1]].flat
            advance_block(block, tokens, partial(_cached_attention, key, value, places))
        out = linear(tokens, module.proj_out.weight.flatten(1), module.proj_out.bias)
        return (column(out) + sample,)


def _cached_attention(
    key: torch.Tensor, value: torch.Tensor, places: torch.Tensor, module: Any, packed: Any
) -> torch.Tensor:
    """Attention of masked tokens to all tokens; their new keys and values overwrite the cached ones."""
    num_rows, num_tokens, _ = packed.shape
    parts = packed.view(num_rows * num_tokens, 3, -1)
    write_tokens(key, places, parts[:, 1])
    write_tokens(value, places, parts[:, 2])
    heads = (num_rows, -1, module.heads, parts.shape[2] // module.heads)
    attended: torch.Tensor = token_attention(*(part.reshape(heads) for part in (parts[:, 0], key, value)))
    return attended


def can_bind_columns(prepared: PreparedNetwork) -> bool:
    """Whether all blocks of the network are supported here, and compute in place."""
    network, lean = prepared.network, prepared.lean
    if lean is None or not supports_masked_convolutions(network):
        return False
    return all(one in lean.modules for one in network.modules() if type(one).__name__ == "Transformer2DModel")
