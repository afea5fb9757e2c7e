"""Orders by time: LRU drops the block that was not touched for longest; Spark's own rule is a variant."""

from collections.abc import Container, Iterator

from takeup.caching.model import BlockId
from takeup.caching.policies.base import Rank, RankedPolicy


class LeastRecentlyUsed(RankedPolicy):
    """Rank: nothing but the time of the last use, which breaks all ties."""

    def rank(self, block: BlockId) -> Rank:
        return ()

    def explain(self, block: BlockId) -> str:
        return "unused for longest"


class SparkEviction(LeastRecentlyUsed):
    """What stock Spark does: LRU, but a block never evicts one of its own RDD; if the others are not enough, it is not
    stored (`MemoryStore.evictBlocksToFreeSpace`, Spark 1.0 to 4.x). So a scan keeps a part of an RDD that does not fit.
    """

    def _victims(self, block: BlockId, pinned: Container[BlockId]) -> Iterator[BlockId]:
        return (victim for victim in super()._victims(block, pinned) if not self.table.are_siblings(block, victim))
