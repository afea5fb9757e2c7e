"""First In, First Out: drop the block that was stored first, however often it was read since."""

from takeup.caching.model import BlockId
from takeup.caching.policies.base import Rank, RankedPolicy


class FirstInFirstOut(RankedPolicy):
    """Rank: nothing but the time of arrival, because a read does not count as a use."""

    def rank(self, block: BlockId) -> Rank:
        return ()

    def explain(self, block: BlockId) -> str:
        return "came in before any other block"

    def read(self, block: BlockId) -> None:
        """A read changes nothing."""
