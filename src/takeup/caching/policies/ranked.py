"""What all policies that order blocks by a rank have in common: the lowest rank leaves first, ties to the least recent.

Admission (optional). Without it, an incoming block always enters if enough unpinned bytes can leave. With it, only
blocks of *strictly lower* rank may leave for it, and blocks that nobody is known to read; if these are not enough, it
stays out and nothing moves. That replaces Spark's rule that a block never evicts its siblings, which stops a scan from
evicting itself but protects dead data too. Between two jobs nothing has a known reader: then this is plain recency.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Container, Iterator

from takeup.caching.groups import GroupTable
from takeup.caching.model import BlockId, Evict, Room

__all__ = ["Rank", "Ranked"]

Rank = tuple[float, ...]


class Ranked(ABC):
    """A policy defined by `rank` alone."""

    def __init__(self, table: GroupTable, capacity_bytes: int, *, admission: bool = False) -> None:
        self.table = table
        self.capacity_bytes = capacity_bytes
        self.admission = admission
        self.size_bytes: dict[BlockId, int] = {}
        self.last_used: dict[BlockId, int] = {}
        self._now = 0

    @abstractmethod
    def rank(self, block: BlockId) -> Rank:
        """The block's worth; the least worthy leaves first. Must also answer for a block that is not stored."""

    def explain(self, block: BlockId) -> str:
        """Why the block is the one to leave."""
        return f"lowest rank {self.rank(block)}"

    def stored(self, block: BlockId, size_bytes: int) -> None:
        self.size_bytes[block] = size_bytes
        self._touch(block)

    def read(self, block: BlockId) -> None:
        self._touch(block)

    def removed(self, block: BlockId) -> None:
        del self.size_bytes[block], self.last_used[block]

    def make_room(self, block: BlockId, size_bytes: int, free_bytes: int, pinned: Container[BlockId]) -> Room:
        chosen: list[Evict] = []
        for victim in self._victims(block, pinned) if free_bytes < size_bytes else ():
            chosen.append(Evict(victim, self.explain(victim)))
            free_bytes += self.size_bytes[victim]
            if free_bytes >= size_bytes:
                break
        if free_bytes < size_bytes:
            return Room((), admit=False, reason="not enough bytes of lower rank" if self.admission else "does not fit")
        return Room(tuple(chosen), admit=True)

    def _victims(self, incoming: BlockId, pinned: Container[BlockId]) -> Iterator[BlockId]:
        """Blocks in the order in which they would leave; under admission, only those that may leave for `incoming`."""
        order = sorted((block for block in self.size_bytes if block not in pinned), key=self._order)
        if not self.admission:
            return iter(order)
        limit = self.rank(incoming)
        return (block for block in order if self.table.rc(block) == 0 or self.rank(block) < limit)

    def _order(self, block: BlockId) -> Rank:
        return (*self.rank(block), self.last_used[block])

    def _touch(self, block: BlockId) -> None:
        self._now += 1
        self.last_used[block] = self._now
