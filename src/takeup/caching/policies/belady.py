"""Next use: drop the block whose next consumer is last in the engine's queue.

Belady's rule on what the engine has announced. The scheduler's order is real knowledge that counts throw away: blocks
with equal counts are told apart by *when* they are needed.
"""

from takeup.caching.model import BlockId
from takeup.caching.policies.base import Rank, RankedPolicy


class FurthestNextUse(RankedPolicy):
    """Rank: minus the position of the next consumer."""

    def rank(self, block: BlockId) -> Rank:
        return (-self.table.next_use(block),)

    def explain(self, block: BlockId) -> str:
        return f"next read at position {self.table.next_use(block):g}, later than any other block"
