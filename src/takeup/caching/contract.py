"""The seam of caching: what a policy answers, and what an engine does with the answer. Open this first.

A policy orders the blocks of *one* store (one executor, one worker). The engine tells it what happened, asks for room
when a block comes in, and carries the answer out. DAG-aware policies also read a `GroupTable`, which the engine feeds
with the consumers of every submitted job; all stores of an application share one table or hold copies of it.
"""

from __future__ import annotations

from collections.abc import Callable, Container
from dataclasses import dataclass
from typing import Protocol

from takeup.caching.model import BlockId, Room

__all__ = ["Policy", "PolicySpec", "Store"]


class Policy(Protocol):
    """Decides which block leaves. Pure: it knows what it was told and nothing else."""

    def stored(self, block: BlockId, size_bytes: int) -> None:
        """The block entered memory."""

    def read(self, block: BlockId) -> None:
        """A task read the block from memory."""

    def removed(self, block: BlockId) -> None:
        """The block left memory, for whatever reason."""

    def make_room(self, block: BlockId, size_bytes: int, free_bytes: int, pinned: Container[BlockId]) -> Room:
        """Say what must leave for `block` to enter, never a pinned one, and whether it should enter at all."""


class Store(Protocol):
    """Where an engine keeps blocks: simulated, on a local disk, in an executor. It carries out a policy's answer."""

    def get(self, block: BlockId) -> object | None:
        """The block if it is in memory, else None."""

    def put(self, block: BlockId, value: object) -> Room:
        """Make room as the policy says, then keep the block in memory if it was admitted."""


@dataclass(frozen=True, slots=True)
class PolicySpec:
    """A policy by name: `make(table, capacity_bytes)` gives one for a store; the rest says what it knows and may do.

    `admission`: it may refuse an incoming block. `uses_table`: it ranks by the group table. `offline`: it sees the
    consumers of jobs that are not submitted yet, so it is a bound and not a contender.
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
