"""Greedy-Dual Size Frequency: drop the block with the fewest reads per byte, old reads counting less and less.

Cherkasova, "Improving WWW Proxies Performance with Greedy-Dual-Size-Frequency Caching Policy", HP Labs 1998. The
priority of a block is set whenever it is used:

    priority(b) = age + frequency(b) / size(b)

The age of the cache is the priority of its last victim. It rises, so a block that was popular long ago is overtaken by
new blocks. Ties go to the least recent. The incoming block competes with the others: if it would be among the victims
itself, it is refused, nothing is evicted, and the cache ages to its priority.
"""

from collections.abc import Container

from takeup.caching.groups import GroupTable
from takeup.caching.model import AdmissionDecision, BlockId
from takeup.caching.policies.base import Rank
from takeup.caching.policies.lfu import LeastFrequentlyUsed


class GreedyDualSizeFrequency(LeastFrequentlyUsed):
    """Rank: the priority at the last use."""

    def __init__(self, table: GroupTable, capacity_bytes: int) -> None:
        super().__init__(table, capacity_bytes)
        self.age = self.age_before = 0.0
        self.priority: dict[BlockId, float] = {}

    def rank(self, block: BlockId) -> Rank:
        return (self.priority.get(block, self.age),)

    def explain(self, block: BlockId) -> str:
        return f"{self.frequency[block]} uses of {self.size_bytes[block]} bytes, the lowest priority in the cache"

    def stored(self, block: BlockId, size_bytes: int) -> None:
        super().stored(block, size_bytes)
        self.priority[block] = self.age_before + 1 / size_bytes

    def read(self, block: BlockId) -> None:
        super().read(block)
        self.priority[block] = self.age + self.frequency[block] / self.size_bytes[block]

    def removed(self, block: BlockId) -> None:
        super().removed(block)
        del self.priority[block]

    def make_room(
        self, block: BlockId, size_bytes: int, free_bytes: int, pinned: Container[BlockId]
    ) -> AdmissionDecision:
        self.age_before = self.age  # an incoming block does not gain age from its own victims
        newcomer = self.age + 1 / size_bytes
        room = super().make_room(block, size_bytes, free_bytes, pinned)
        highest = max((self.priority[victim.block] for victim in room.evict), default=0.0)
        self.age = max(self.age, min(highest, newcomer))
        if highest > newcomer:
            return AdmissionDecision(
                (), admit=False, reason="its own priority is lower than that of a block it would push out"
            )
        return room
