"""Drop the block whose next reader is the farthest away: Belady's rule.

`furthest_next_use` goes by the consumers that are announced, `belady` by those of the whole future.

Belady, "A study of replacement algorithms for a virtual-storage computer", IBM Systems Journal 1966. The engine's queue
is real knowledge that counts throw away: blocks with equal counts are told apart by *when* they are needed.
"""

from takeup.caching.model import BlockId
from takeup.caching.policies.base import Rank, RankedPolicy


class FurthestNextUse(RankedPolicy):
    """Rank: minus the position of the next consumer.

    With every job of the future in the table, which no engine can know, this is MIN. For blocks of equal size no policy
    has more hits as long as a task holds one block at a time; where inputs that are pinned keep a block out that is
    needed sooner, one may have a few. For blocks of different sizes it is a reference and no bound.
    """

    def rank(self, block: BlockId) -> Rank:
        return (-self.table.next_use(block),)

    def explain(self, block: BlockId) -> str:
        return f"next read at position {self.table.next_use(block):g}, later than any other block"
