"""Base of the policies: they order blocks by a rank; the lowest is evicted first, ties by least recent use.

Admission (optional). Without it, an incoming block is always admitted if enough unpinned bytes can be evicted. With
it, only blocks of *strictly lower* rank and blocks without a known reader may be evicted for it; if these are not
enough, it is refused and nothing is evicted. Between jobs no block has a known reader: then recency decides, and
Spark's rule that a block never evicts its siblings, which stops a scan from evicting itself.
"""

from abc import ABC, abstractmethod
from collections.abc import Container, Iterator

from takeup.caching.groups import GroupTable
from takeup.caching.model import AdmissionDecision, BlockId, Evict

Rank = tuple[float, ...]


class RankedPolicy(ABC):
    """A policy defined by `rank` alone."""

    def __init__(self, table: GroupTable, capacity_bytes: float, *, admission: bool = False) -> None:
        self.table = table
        self.capacity_bytes = capacity_bytes
        self.admission = admission
        self.size_bytes: dict[BlockId, int] = {}
        self.last_used: dict[BlockId, int] = {}
        self._now = 0

    @abstractmethod
    def rank(self, block: BlockId) -> Rank:
        """The block's value; the lowest is evicted first. Must also be defined for a block that is not stored."""

    def explain(self, block: BlockId) -> str:
        """Why the block is the victim."""
        return f"lowest rank {self.rank(block)}"

    def stored(self, block: BlockId, size_bytes: int) -> None:
        self.size_bytes[block] = size_bytes
        self._touch(block)

    def read(self, block: BlockId) -> None:
        self._touch(block)

    def removed(self, block: BlockId) -> None:
        del self.size_bytes[block], self.last_used[block]

    def make_room(
        self, block: BlockId, size_bytes: int, free_bytes: int, pinned: Container[BlockId]
    ) -> AdmissionDecision:
        chosen: list[Evict] = []
        for victim in self._victims(block, pinned) if free_bytes < size_bytes else ():
            chosen.append(Evict(victim, self.explain(victim)))
            free_bytes += self.size_bytes[victim]
            if free_bytes >= size_bytes:
                break
        if free_bytes < size_bytes:
            return AdmissionDecision(
                (), admit=False, reason="not enough bytes of lower rank" if self.admission else "does not fit"
            )
        return AdmissionDecision(tuple(chosen), admit=True)

    def _victims(self, incoming: BlockId, pinned: Container[BlockId]) -> Iterator[BlockId]:
        """Blocks in eviction order; under admission, only those that may be evicted for `incoming`."""
        order = sorted((block for block in self.size_bytes if block not in pinned), key=self._order)
        if not self.admission:
            return iter(order)
        limit = self.rank(incoming)
        is_awaited = self.table.rc(incoming) > 0
        return (block for block in order if self._is_free(block, incoming, is_awaited) or self.rank(block) < limit)

    def _is_free(self, block: BlockId, incoming: BlockId, is_awaited: bool) -> bool:
        """Whether nothing is known that speaks for keeping the block rather than the incoming one."""
        return self.table.rc(block) == 0 and (is_awaited or not self.table.are_siblings(block, incoming))

    def _order(self, block: BlockId) -> Rank:
        return (*self.rank(block), self.last_used[block])

    def _touch(self, block: BlockId) -> None:
        self._now += 1
        self.last_used[block] = self._now
