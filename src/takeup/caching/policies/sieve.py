"""SIEVE: a hand scans from the oldest block to the newest and evicts the first one not read since its last pass.

Zhang, Yang, Yue, Vigfusson, Rashmi, "SIEVE is Simpler than LRU: an Efficient Turn-Key Eviction Algorithm for Web
Caches", NSDI 2024. A block that was read loses its mark and stays *where it is*: unlike in CLOCK, new blocks are
inserted behind it, so they are examined soon and blocks with repeated reads are kept.
"""

from collections.abc import Container

from takeup.caching.groups import GroupTable
from takeup.caching.model import BlockId, Evict
from takeup.caching.policies.base import QueuePolicy


class Sieve(QueuePolicy):
    """One queue, oldest first, and the index of the hand in it."""

    def __init__(self, table: GroupTable, capacity_bytes: int) -> None:
        super().__init__(table, capacity_bytes)
        self.queue: list[BlockId] = []
        self.hand = 0
        self.visited: set[BlockId] = set()

    def stored(self, block: BlockId, size_bytes: int) -> None:
        self.size_bytes[block] = size_bytes
        self.queue.append(block)

    def read(self, block: BlockId) -> None:
        self.visited.add(block)

    def removed(self, block: BlockId) -> None:
        if self.size_bytes.pop(block, None) is None:
            return
        place = self.queue.index(block)
        del self.queue[place]
        self.visited.discard(block)
        self._point_to(self.hand - (place < self.hand))

    def next_victim(self, pinned: Container[BlockId]) -> Evict:
        while (block := self.queue[self.hand]) in pinned or block in self.visited:
            if block not in pinned:
                self.visited.remove(block)
            self._point_to(self.hand + 1)
        return Evict(block, "unread since the hand last passed")

    def _point_to(self, place: int) -> None:
        self.hand = place if place < len(self.queue) else 0
