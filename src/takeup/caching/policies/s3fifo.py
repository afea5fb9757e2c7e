"""S3-FIFO: three queues; evict new blocks that are not read soon before they displace useful ones.

Yang, Zhang, Qiu, Yue, Rashmi, "FIFO Queues are All You Need for Cache Eviction", SOSP 2023.

How it works. A new block enters the *small* queue, a tenth of the cache. When it reaches the end, it moves to the
*main* queue if it was read twice; otherwise it is evicted, and the *ghost* queue keeps its id. A block that is
stored again while its id is in the ghost queue goes directly to main. At the end of main a block that was read is
reinserted and its count reduced by one (at most three reads count); one that was not is evicted. The small queue is
evicted from first, unless main is above its share. While a cache fills up for the first time, blocks beyond the share
of the small queue go to main.
"""

from collections import Counter, OrderedDict
from collections.abc import Container

from takeup.caching.groups import GroupTable
from takeup.caching.model import AdmissionDecision, BlockId, Evict
from takeup.caching.policies.base import QueuePolicy

SMALL_SHARE = 0.1
GHOST_SHARE = 0.9
READS_TO_MAIN = 2
MAX_READS = 3

Queue = OrderedDict[BlockId, int]  # oldest first, with sizes


def queue_bytes(capacity_bytes: int) -> tuple[int, int]:
    """The shares of the small queue and of the ghost queue, in bytes; the rest of the cache is the main queue's."""
    return int(capacity_bytes * SMALL_SHARE), int(capacity_bytes * GHOST_SHARE)


class S3Fifo(QueuePolicy):
    """The three queues, and how often each block was read in its current queue."""

    def __init__(self, table: GroupTable, capacity_bytes: int) -> None:
        super().__init__(table, capacity_bytes)
        self.small_bytes, self.ghost_bytes = queue_bytes(capacity_bytes)
        self.small: Queue = OrderedDict()
        self.main: Queue = OrderedDict()
        self.ghost: Queue = OrderedDict()
        self.reads: Counter[BlockId] = Counter()
        self.returning: BlockId | None = None
        self.has_evicted = False

    def stored(self, block: BlockId, size_bytes: int) -> None:
        fills_up = not self.has_evicted and _bytes(self.small) >= self.small_bytes
        queue = self.main if fills_up or block == self.returning else self.small
        queue[block] = self.size_bytes[block] = size_bytes

    def read(self, block: BlockId) -> None:
        self.reads[block] = min(MAX_READS, self.reads[block] + 1)

    def removed(self, block: BlockId) -> None:
        for state in (self.small, self.main, self.reads, self.size_bytes):
            state.pop(block, None)

    def make_room(
        self, block: BlockId, size_bytes: int, free_bytes: int, pinned: Container[BlockId]
    ) -> AdmissionDecision:
        self.returning = block if self.ghost.pop(block, None) else None  # before victims displace it from the ghost
        return super().make_room(block, size_bytes, free_bytes, pinned)

    def next_victim(self, pinned: Container[BlockId]) -> Evict:
        self.has_evicted = True
        return (None if self._main_gives_way(pinned) else self._from_small(pinned)) or self._from_main(pinned)

    def _main_gives_way(self, pinned: Container[BlockId]) -> bool:
        is_above_share = _bytes(self.main) > self.capacity_bytes - self.small_bytes
        return is_above_share and any(block not in pinned for block in self.main)

    def _from_small(self, pinned: Container[BlockId]) -> Evict | None:
        """Move blocks to main until one must be evicted; none if all of them moved."""
        for block in [block for block in self.small if block not in pinned]:
            if self.reads[block] < READS_TO_MAIN:
                self._remember(block, self.small[block])
                return Evict(block, "hardly read while it was new")
            self.main[block] = self.small.pop(block)
            del self.reads[block]
        return None

    def _from_main(self, pinned: Container[BlockId]) -> Evict:
        """Reinsert blocks until one has no reads left."""
        while True:
            block = next(block for block in self.main if block not in pinned)
            if not self.reads[block]:
                return Evict(block, "unread since its last round through the main queue")
            self.reads[block] -= 1
            self.main.move_to_end(block)

    def _remember(self, block: BlockId, size_bytes: int) -> None:
        if size_bytes > self.ghost_bytes:
            return
        while _bytes(self.ghost) + size_bytes > self.ghost_bytes:
            self.ghost.popitem(last=False)
        self.ghost[block] = size_bytes


def _bytes(queue: Queue) -> int:
    return sum(queue.values())
