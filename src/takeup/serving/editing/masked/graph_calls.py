"""Masked calls for CUDA-graph capture: fixed addresses, few kernels, no hooks; double buffering of their inputs.

How it works. A CUDA graph reads the addresses it was captured with. So each kind of masked call has private index
tables, into which those of other masks of the same sizes are copied, and two buffers for cached activations
(`DoubleBuffer`): the next step's are prefetched on a side stream while a call reads the other one. Keys and values are
in memory that all kinds share.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import torch

from takeup.serving.diffusion.contract import DenoisingRun, GraphBuffers
from takeup.serving.editing.masked.kv_cache import FlatKvCache, IndexTables
from takeup.serving.editing.masked.tokens import PLACED, Page
from takeup.serving.editing.templates.template import PageReader

# Double buffering: prefetch the next step's cached activations on a side stream while a call reads another buffer -----

cuda: Any = torch.cuda  # torch.cuda functions are not annotated
Read = Callable[[], Sequence[Page]]


class PrefetchBuffer(Protocol):
    """Buffer from which a call reads cached activations."""

    def load(self, pages: Sequence[Page]) -> None:
        """Copy pages in, each to its own rows of the batch."""


class DoubleBuffer:
    """Tracks the contents of each buffer. The key is equal for equal pages: the edits and their steps.

    All instances that share memory copy on one `stream`; None on the CPU, where copies are synchronous.
    """

    def __init__(self, places: Sequence[PrefetchBuffer], stream: Any) -> None:
        self._places, self._stream = places, stream
        self._filled: list[Any] = [cuda.Event() for _ in places] if self._stream else []
        self._who: list[Hashable] = [None for _ in places]
        self._pages: list[Sequence[Page]] = [() for _ in places]

    def now(self, who: Hashable, read: Read) -> int:
        """Number of the buffer that has these pages; they are loaded now if they were not prefetched."""
        if who not in self._who:
            self._bring(0, who, read)
        number = self._who.index(who)
        if self._stream:
            cuda.current_stream().wait_event(self._filled[number])
        return number

    def soon(self, number: int, who: Hashable, read: Read) -> None:
        """Prefetch the next pages into this buffer; the copy waits for work enqueued so far, its last reader."""
        self._bring(number, who, read)

    def forget(self) -> None:
        """Mark all buffers as invalid."""
        self._who = [None for _ in self._places]

    def let_go(self) -> None:
        """Drop references to loaded pages: they may be the last ones to an evicted template."""
        for filled in self._filled:
            filled.synchronize()  # pending copies still read the pages
        self._pages = [() for _ in self._places]
        self.forget()

    def _bring(self, number: int, who: Hashable, read: Read) -> None:
        if self._stream:
            self._filled[number].synchronize()  # pending copies read the pages released below
            self._stream.wait_stream(cuda.current_stream())
        with cuda.stream(self._stream) if self._stream else nullcontext():
            pages = self._pages[number] = read()
            self._places[number].load(pages)
        if self._stream:
            self._filled[number].record(self._stream)
        self._who[number] = who


# Masked calls for CUDA-graph capture ----------------------------------------------------------------------------------

NUM_BUFFERS = 2


class KvMemory:
    """KV buffers shared by all kinds of captured calls. `user` is the kind that made the last call."""

    def __init__(self, device: torch.device) -> None:
        self.stream: Any = cuda.Stream() if device.type == "cuda" else None
        self.user: GraphCall | None = None
        self._flats: dict[Hashable, list[FlatKvCache]] = {}

    def flats(self, like: Page) -> list[FlatKvCache]:
        """Buffers for pages of these shapes and dtypes, shared by all callers."""
        kind = frozenset((name, tuple(one.shape), one.dtype) for name, one in like.items())
        if kind not in self._flats:
            self._flats[kind] = [FlatKvCache(like) for _ in range(NUM_BUFFERS)]
        return self._flats[kind]


@dataclass(slots=True, eq=False)
class MaskedBatch:
    """Edits that share a call: their token positions and cached activations.

    `weights` are equal for equal weights of the network. If `is_alone`, the next masked call is the
    next step of the same edits, so it can be prefetched.
    """

    bind: Callable[[Any, MaskedBatch], GraphBuffers]
    tables: IndexTables
    runs: Sequence[DenoisingRun]
    readers: Sequence[PageReader]
    who: Hashable
    memory: KvMemory
    weights: Hashable = ()
    is_alone: bool = True

    @property
    def kind(self) -> Hashable:
        """Equal for calls that can share a CUDA graph."""
        return self.tables.sizes

    def steps(self, ahead: int = 0) -> tuple[int, ...]:
        """Step of each edit, `ahead` steps from now."""
        return tuple(run.step + ahead for run in self.runs)

    def pages(self, ahead: int = 0) -> list[Page]:
        """Cached activations of each edit, `ahead` steps from now."""
        return [reader.page(step, PLACED) for reader, step in zip(self.readers, self.steps(ahead), strict=True)]

    @property
    def has_next(self) -> bool:
        """Whether all templates have the next step."""
        return all(reader.has(step) for reader, step in zip(self.readers, self.steps(1), strict=True))

    def bound(self, prepared: Any) -> GraphBuffers:
        """Buffers and forwards for calls of this kind."""
        return self.bind(prepared, self)


class GraphCall:
    """One kind of masked call."""

    num_places = NUM_BUFFERS

    def __init__(self, tables: IndexTables, places: Sequence[PrefetchBuffer], memory: KvMemory) -> None:
        self._tables, self._memory = tables, memory
        self._turns = DoubleBuffer(places, memory.stream)
        self._current_tables: IndexTables | None = None

    def fill(self, masked: MaskedBatch) -> int:
        """Load the cached activations of the call, prefetch those of the next step, and return the buffer number."""
        if self._memory.user is not self or masked.tables is not self._current_tables:
            self._turns.forget()
        if self._memory.user not in {None, self}:
            self._memory.user.let_go()
        self._memory.user = self
        self._set_tables(masked.tables)
        number = self._turns.now((masked.who, masked.steps()), masked.pages)
        if masked.is_alone and masked.has_next:
            self._turns.soon(1 - number, (masked.who, masked.steps(1)), partial(masked.pages, 1))
        return number

    def _set_tables(self, tables: IndexTables) -> None:
        if tables is not self._current_tables:
            self._tables.take(tables)
            self._current_tables = tables

    def let_go(self) -> None:
        """Release loaded pages, because another kind of call uses the memory next."""
        self._turns.let_go()

    def forget(self) -> None:
        """Invalidate the buffers after trial calls, which overwrote them."""
        self._turns.forget()


def like_all(pages: Sequence[Page], device: torch.device, fronted: frozenset[str], num_front: int = 0) -> Page:
    """Expanded placeholders with the shapes of all pages concatenated, plus `num_front` tokens for names `fronted`."""
    num_rows = sum(len(next(iter(page.values()))) for page in pages)
    return {name: _like(one, num_rows, device, num_front if name in fronted else 0) for name, one in pages[0].items()}


def _like(one: torch.Tensor, num_rows: int, device: torch.device, num_front: int) -> torch.Tensor:
    number = torch.empty(1, dtype=one.dtype, device=device)
    return number.expand(num_rows, num_front + one.shape[1], *one.shape[2:])
