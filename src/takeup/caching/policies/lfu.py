"""Least Frequently Used: drop the block that was read least often since it was stored.

The oldest count-based rule; see Einziger, Friedman, Manes, "TinyLFU: A Highly Efficient Cache Admission Policy", ACM
Transactions on Storage 2017, section 2. An evicted block loses its count and starts again at one. Ties go to the least
recent.
"""

from collections import Counter

from takeup.caching.groups import GroupTable
from takeup.caching.model import BlockId
from takeup.caching.policies.base import Rank, RankedPolicy


class LeastFrequentlyUsed(RankedPolicy):
    """Rank: how often the block was used since it was stored, the store included."""

    def __init__(self, table: GroupTable, capacity_bytes: int) -> None:
        super().__init__(table, capacity_bytes)
        self.frequency: Counter[BlockId] = Counter()

    def rank(self, block: BlockId) -> Rank:
        return (self.frequency[block],)

    def explain(self, block: BlockId) -> str:
        return f"used {self.frequency[block]} times, less often than any other block"

    def stored(self, block: BlockId, size_bytes: int) -> None:
        super().stored(block, size_bytes)
        self.frequency[block] = 1

    def read(self, block: BlockId) -> None:
        super().read(block)
        self.frequency[block] += 1

    def removed(self, block: BlockId) -> None:
        super().removed(block)
        del self.frequency[block]
