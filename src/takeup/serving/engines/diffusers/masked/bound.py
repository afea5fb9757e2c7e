"""Masked calls of U-Nets as they are recorded for a device: fixed memory, few kernels, no hooks.

How it works. A recorded call finds everything where it was when it was recorded. So a call of masked pixels has tables
of its own, into which those of other masks of the same sizes are copied, and places for what is kept (`turns`). Blocks
are those of `lean`, with attention to what is kept. Keys and values lie in memory that all sizes of calls share.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch.nn.functional import linear

from takeup.serving.engines.diffusers.device.compute import Prepared
from takeup.serving.engines.diffusers.device.lean import advance
from takeup.serving.engines.diffusers.device.ops import token_attention
from takeup.serving.engines.diffusers.masked.columns import Columns, can_mask, column, tokens_of
from takeup.serving.engines.diffusers.masked.flat import Flat, put
from takeup.serving.engines.diffusers.masked.kept_columns import KeptColumns, Tables
from takeup.serving.engines.diffusers.masked.pages import MAP, NORM, Page
from takeup.serving.engines.diffusers.masked.stale import Watched, stale_error
from takeup.serving.engines.diffusers.masked.turns import Turns
from takeup.serving.engines.templates.templates import Reader

__all__ = ["BoundColumns", "Masked", "Memory", "can_bind"]

NUM_PLACES = 2


class Memory:
    """For keys and values, as much as the largest number of rows needs."""

    def __init__(self) -> None:
        self._flats: dict[Hashable, list[Flat]] = {}

    def flats(self, like: Page) -> list[Flat]:
        """Places for pages like this one."""
        kind = tuple((name, tuple(one.shape), one.dtype) for name, one in like.items())
        if kind not in self._flats:
            self._flats[kind] = [Flat(like) for _ in range(NUM_PLACES)]
        return self._flats[kind]


@dataclass(slots=True, eq=False)
class Masked:
    """Edits that share a call: where their tokens are, and how far each of them is in its template.

    The call says of each that is looked at, by its place among them, how far its `watched` tokens went.
    """

    tables: Tables
    readers: Sequence[Reader]
    steps: Sequence[int]
    who: Hashable
    memory: Memory
    watched: Mapping[int, Watched] = field(default_factory=dict)
    errors: dict[int, torch.Tensor] = field(default_factory=dict)

    @property
    def kind(self) -> Hashable:
        """Equal for calls that can be made by one recorded call."""
        return self.tables.sizes

    def pages(self, ahead: int = 0) -> list[Page]:
        """What is kept for this step, or for one that comes."""
        return [reader.page(step + ahead) for reader, step in zip(self.readers, self.steps, strict=True)]

    @property
    def has_next(self) -> bool:
        """Whether templates know another step."""
        return all(reader.has(step + 1) for reader, step in zip(self.readers, self.steps, strict=True))

    def bound(self, prepared: Prepared) -> BoundColumns:
        """Memory for calls of this kind."""
        return BoundColumns(prepared, self)


class BoundColumns:
    """One kind of masked call of a U-Net."""

    num_places = NUM_PLACES

    def __init__(self, prepared: Prepared, masked: Masked) -> None:
        self._prepared, self._tables = prepared, masked.tables.copied()
        like = _like(masked.pages(), prepared.network.device)
        kept = {name: one for name, one in like.items() if not name.endswith((MAP, NORM))}
        self._flats = [KeptColumns(like, self._tables, flat) for flat in masked.memory.flats(kept)]
        self._columns = LeanColumns(prepared.network, self._flats[0])
        self._turns = Turns(self._flats, prepared.network.device)
        self._told: Tables | None = None
        self._pieces: dict[int, torch.Tensor] = {}
        self._before: dict[int, torch.Tensor] = {}

    def fill(self, masked: Masked) -> int:
        """Bring what the call needs; the place it lies in."""
        if masked.tables is not self._told:
            self._tables.take(masked.tables)
            self._told = masked.tables
            self._turns.forget()
            self._pieces = {}
        number = self._turns.now((masked.who, tuple(masked.steps)), masked.pages)
        if masked.has_next:
            following = masked.who, tuple(step + 1 for step in masked.steps)
            self._turns.soon(1 - number, following, partial(masked.pages, 1))
        self._before = self._taken(masked, number)
        return number

    def leave(self, masked: Masked, number: int) -> None:
        """After the call."""
        after = self._taken(masked, number)
        masked.errors = {edit: stale_error(self._before[edit], after[edit]) for edit in masked.watched}

    @contextmanager
    def computing(self, number: int) -> Iterator[None]:
        """Inside, the network computes masked pixels from what lies in this place."""
        self._columns.source = self._flats[number]
        with self._prepared.plain():
            self._columns.put()
            try:
                yield
            finally:
                self._columns.remove()

    def _taken(self, masked: Masked, number: int) -> dict[int, torch.Tensor]:
        """What is kept now of the tokens that are looked at."""
        flat = self._flats[number].flat
        for edit, watched in masked.watched.items():
            if edit not in self._pieces:
                self._pieces[edit] = flat.pieces(watched)
        return {edit: flat.taken(self._pieces[edit]) for edit in masked.watched}


class LeanColumns(Columns):
    """Columns whose transformers compute in place."""

    def _transformer(self, name: str, module: Any, sample: torch.Tensor, *_: Any, **__: Any) -> Any:
        source: Any = self.source
        tokens = linear(tokens_of(module.norm(sample)), module.proj_in.weight.flatten(1), module.raised_bias)
        for number, block in enumerate(module.transformer_blocks):
            key, value = (source.views[f"{name}.{number}.{part}"] for part in "kv")
            places = source.tables.places[key.shape[1]].flat
            advance(block, tokens, partial(_to_kept, key, value, places))
        out = linear(tokens, module.proj_out.weight.flatten(1), module.proj_out.bias)
        return (column(out) + sample,)


def _to_kept(key: torch.Tensor, value: torch.Tensor, places: torch.Tensor, module: Any, packed: Any) -> torch.Tensor:
    """Attention of some tokens to all, in which their own keys and values take the place of the kept ones."""
    num_rows, num_tokens, _ = packed.shape
    parts = packed.view(num_rows * num_tokens, 3, -1)
    put(key, places, parts[:, 1])
    put(value, places, parts[:, 2])
    heads = (num_rows, -1, module.heads, parts.shape[2] // module.heads)
    attended: torch.Tensor = token_attention(*(part.reshape(heads) for part in (parts[:, 0], key, value)))
    return attended


def can_bind(prepared: Prepared) -> bool:
    """Whether masked calls of this network can be recorded."""
    network, lean = prepared.network, prepared.lean
    if lean is None or not can_mask(network):
        return False
    return all(one in lean.modules for one in network.modules() if type(one).__name__ == "Transformer2DModel")


def _like(pages: Sequence[Page], device: torch.device) -> dict[str, torch.Tensor]:
    """As large as all pages together, without memory."""
    num_rows = {name: sum(len(page[name]) for page in pages) for name in pages[0]}
    return {
        name: torch.empty(1, dtype=one.dtype, device=device).expand(num_rows[name], *one.shape[1:])
        for name, one in pages[0].items()
    }
