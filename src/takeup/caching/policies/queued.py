"""Base of the policies that keep queues: take victims one by one until the block fits, or refuse beforehand.

A victim is removed from the queues as soon as it is chosen, so that the next choice does not see it; when the engine
then reports it `removed`, there is nothing left to do.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Container

from takeup.caching.groups import GroupTable
from takeup.caching.model import AdmissionDecision, BlockId, Evict


class QueuePolicy(ABC):
    """A policy defined by its queues and by which block they evict next."""

    def __init__(self, table: GroupTable, capacity_bytes: int) -> None:
        self.table = table
        self.capacity_bytes = capacity_bytes
        self.size_bytes: dict[BlockId, int] = {}

    @abstractmethod
    def next_victim(self, pinned: Container[BlockId]) -> Evict:
        """The block to evict next, never a pinned one. There is at least one that is not pinned."""

    @abstractmethod
    def stored(self, block: BlockId, size_bytes: int) -> None: ...

    @abstractmethod
    def read(self, block: BlockId) -> None: ...

    @abstractmethod
    def removed(self, block: BlockId) -> None: ...

    def make_room(
        self, block: BlockId, size_bytes: int, free_bytes: int, pinned: Container[BlockId]
    ) -> AdmissionDecision:
        movable_bytes = sum(size for stored, size in self.size_bytes.items() if stored not in pinned)
        if free_bytes + movable_bytes < size_bytes:
            return AdmissionDecision((), admit=False, reason="does not fit")
        chosen: list[Evict] = []
        while free_bytes < size_bytes:
            victim = self.next_victim(pinned)
            free_bytes += self.size_bytes[victim.block]
            self.removed(victim.block)
            chosen.append(victim)
        return AdmissionDecision(tuple(chosen), admit=True)
