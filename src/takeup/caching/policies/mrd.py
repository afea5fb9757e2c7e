"""Most Reference Distance: drop the block whose next reader is the most stages away; never read again is farthest.

Perez, Zhou, Cheng, "Reference-distance Eviction and Prefetching for Cache Management in Spark", ICPP 2018. Only the
eviction half; prefetching is the engine's part.
"""

from takeup.caching.model import BlockId
from takeup.caching.policies.base import Rank
from takeup.caching.policies.belady import FurthestNextUse


class MostReferenceDistance(FurthestNextUse):
    """Rank: minus the stage of the next consumer."""

    def rank(self, block: BlockId) -> Rank:
        return (-self.table.next_stage(block),)

    def explain(self, block: BlockId) -> str:
        return f"next read in stage {self.table.next_stage(block):g}, later than any other block"
