"""Least Recently Used: drop the block that was not touched for longest; and FIFO, for which only storing is a use."""

from takeup.caching.model import BlockId
from takeup.caching.policies.base import Rank, RankedPolicy


class LeastRecentlyUsed(RankedPolicy):
    """Rank: nothing but the time of the last use, which breaks all ties."""

    def rank(self, block: BlockId) -> Rank:
        return ()

    def explain(self, block: BlockId) -> str:
        return "unused for longest"


class FirstInFirstOut(LeastRecentlyUsed):
    """Drop the block that was stored first, however often it was read since."""

    def explain(self, block: BlockId) -> str:
        return "came in before any other block"

    def read(self, block: BlockId) -> None:
        """A read changes nothing."""
