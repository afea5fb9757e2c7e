"""DAG value: drop the block that saves its consumers the least, soon, per byte. Our default.

How it works. The worth of a block is what its consumers lose when it leaves, discounted by how far away they are, per
byte it occupies:

    worth(b) = sum over the next few consumers g of b:  cost(b) * exp(-position_g / horizon)  /  size(b)

The cost is the time to restore the block; tasks restore one input after the other, so costs add up, and with unit costs
and sizes this is a refined LRC. Positions are bytes the engine touches before the consumer runs, and the horizon is a
fraction of the cache, so what lies beyond a cache's worth of traffic hardly counts. With an exponential discount the
order of two blocks does not change while time passes: an index stays valid.
The logarithm keeps far consumers apart where the plain sum would be zero.
"""

import heapq
import math

from takeup.caching.model import BlockId
from takeup.caching.policies.base import Rank, RankedPolicy

NUM_CONSUMERS = 8  # later ones are discounted away; the bound keeps an update cheap for a block that all tasks read
HORIZON_SHARE = 1.0  # of the cache: what is read within one turnover competes by cost and size, beyond it by distance
RESOLUTION = 2.0**20  # of the logarithm; coarser than rounding, so that every implementation sees the same ties


class DagValue(RankedPolicy):
    """Rank: logarithm of the discounted saving per byte, then the reference count."""

    def rank(self, block: BlockId) -> Rank:
        cost_s, horizon_bytes = self.table.cost_s(block), HORIZON_SHARE * max(1, self.capacity_bytes)
        positions = heapq.nsmallest(NUM_CONSUMERS, (group.position for group in self.table.groups(block)))
        if cost_s <= 0 or not positions:
            return (-math.inf, self.table.rc(block))
        terms = [math.log(cost_s) - position / horizon_bytes for position in positions]
        peak = terms[0]
        worth = peak + math.log(sum(math.exp(term - peak) for term in terms))
        density = worth - math.log(self.table.size_bytes(block))
        return (math.floor(density * RESOLUTION), self.table.rc(block))

    def explain(self, block: BlockId) -> str:
        return f"saves the least per byte (log value {self.rank(block)[0] / RESOLUTION:.3g})"
