"""Least Reference Count: drop the block that the fewest unfinished consumers still read.

Yu, Wang, Zhang, Letaief, "LRC: Dependency-Aware Cache Management for Data Analytics Clusters", INFOCOM 2017. A block
without a future reader has count 0 and is evicted first, however recently it was used. Ties: least recently used.
"""

from takeup.caching.model import BlockId
from takeup.caching.policies.base import Rank, RankedPolicy


class LeastReferenceCount(RankedPolicy):
    """Rank: the reference count."""

    def rank(self, block: BlockId) -> Rank:
        return (self.table.rc(block),)

    def explain(self, block: BlockId) -> str:
        return f"{self.table.rc(block)} consumers still read it, fewer than of any other block"
