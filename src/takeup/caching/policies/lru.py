"""Least Recently Used: drop the block that was not touched for longest. What Spark and Dask do today."""

from takeup.caching.model import BlockId
from takeup.caching.policies.base import Rank, RankedPolicy


class LeastRecentlyUsed(RankedPolicy):
    """Rank: nothing but the time of the last use, which breaks all ties."""

    def rank(self, block: BlockId) -> Rank:
        return ()

    def explain(self, block: BlockId) -> str:
        return "unused for longest"
