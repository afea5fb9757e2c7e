"""The interface between caching policies and engines. Read this first.

A policy orders the blocks of *one* store (one executor, one worker). The engine reports events to it, calls `make_room`
for an incoming block, and applies the answer. DAG-aware policies also read a `GroupTable`, which the engine updates
with the consumers of every submitted job; all stores of an application share one table or hold copies of it.
"""

from collections.abc import Callable, Container
from dataclasses import dataclass
from typing import Protocol

from takeup.caching.model import AdmissionDecision, BlockId


class Policy(Protocol):
    """Decides which block to evict. Pure: it knows only the events reported to it."""

    def stored(self, block: BlockId, size_bytes: int) -> None:
        """The block was stored in memory."""

    def read(self, block: BlockId) -> None:
        """A task read the block from memory."""

    def removed(self, block: BlockId) -> None:
        """The block was removed from memory, for any reason."""

    def make_room(
        self, block: BlockId, size_bytes: int, free_bytes: int, pinned: Container[BlockId]
    ) -> AdmissionDecision:
        """Select the victims for `block`, never pinned ones, and whether to admit it at all."""


@dataclass(frozen=True, slots=True)
class PolicySpec:
    """A policy by name: `make(table, capacity_bytes)` gives one for a store; the rest says what it knows and may do.

    `admission`: it may refuse an incoming block. `uses_table`: it ranks by the group table. `offline`: it sees the
    consumers of jobs that are not submitted yet, so it is a bound, not a deployable policy.
    """

    name: str
    make: Callable[..., Policy]
    admission: bool = False
    uses_table: bool = False
    offline: bool = False

    @property
    def base(self) -> str:
        """The name without its option: `lerc` of `lerc+admission`."""
        return self.name.replace("-", "+").partition("+")[0]
