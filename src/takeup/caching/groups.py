"""The group table: which blocks each pending consumer reads together, and which groups are complete in memory.

How it works. Every consumer that is not computed yet has one *group*: the blocks it will read. Of a block,

    rc(b)   the number of open groups that contain b                                  (Yu et al., INFOCOM 2017)
    erc(b)  those of them that miss nothing: each block that was ever materialised    (Yu et al., GLOBECOM 2017)
            is in memory. A block that does not exist yet does not make a group incomplete.

Both are kept current by four events: `open` and `close` of a consumer, `cached` and `lost` of a block. Events may be
duplicated or late; the table stores which blocks are in memory, not a count of messages, so events are idempotent.
Everything DAG-aware policies rank by is a function of this table.

An engine reports `cached` *before* it calls `make_room` of a policy, and `lost` if the block was refused: so an
incoming block, and the peers it completes, are ranked as if it were in memory.
"""

import math
from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass, field

from takeup.caching.model import BlockId, ConsumerId


@dataclass(slots=True)
class PeerGroup:
    """The blocks one open consumer reads together. `position` is where it is in the engine's order, in bytes touched
    before it; `stage` is the same in stages; `missing` are its blocks that were materialised and are not in memory."""

    consumer: ConsumerId
    blocks: tuple[BlockId, ...]
    position: float
    stage: int
    missing: set[BlockId] = field(default_factory=set)


@dataclass(slots=True)
class GroupTable:
    """Counts per block over the open groups."""

    _groups: dict[ConsumerId, PeerGroup] = field(default_factory=dict)
    _groups_of: dict[BlockId, dict[ConsumerId, PeerGroup]] = field(default_factory=dict)
    _in_memory: dict[BlockId, bool] = field(default_factory=dict)
    _erc: dict[BlockId, int] = field(default_factory=dict)
    _size_bytes: dict[BlockId, int] = field(default_factory=dict)
    _cost_s: dict[BlockId, float] = field(default_factory=dict)
    _dataset: dict[BlockId, Hashable] = field(default_factory=dict)

    # Events -------------------------------------------------------------------------------------------------------

    def open(self, consumer: ConsumerId, blocks: Iterable[BlockId], position: float = 0, stage: int = 0) -> None:
        """A consumer will read `blocks`. Opening it again replaces its previous group."""
        self.close(consumer)
        group = PeerGroup(consumer, tuple(dict.fromkeys(blocks)), position, stage)
        group.missing = {block for block in group.blocks if self.is_lost(block)}
        self._groups[consumer] = group
        for block in group.blocks:
            self._groups_of.setdefault(block, {})[consumer] = group
        self._count_complete(group, +1)

    def close(self, consumer: ConsumerId) -> None:
        """The consumer is computed, failed for good or cancelled. Unknown or closed consumers are ignored."""
        group = self._groups.pop(consumer, None)
        if group is None:
            return
        self._count_complete(group, -1)
        for block in group.blocks:
            del self._groups_of[block][consumer]

    def describe(self, block: BlockId, size_bytes: int, cost_s: float, dataset: Hashable = None) -> None:
        """Set the size of the block, the seconds to restore it once it is lost, and the dataset it is a part of."""
        self._size_bytes[block] = size_bytes
        self._cost_s[block] = cost_s
        if dataset is not None:
            self._dataset[block] = dataset

    def cached(self, block: BlockId) -> int:
        """The block is in memory. Returns how many groups this made complete."""
        was_lost = self.is_lost(block)
        self._in_memory[block] = True
        return sum(self._arrive(group, block) for group in self.groups(block)) if was_lost else 0

    def lost(self, block: BlockId) -> int:
        """The block exists but is in no memory. Returns how many complete groups became incomplete: workers must be
        notified only when that is not zero."""
        was_lost = self.is_lost(block)
        self._in_memory[block] = False
        return 0 if was_lost else sum(self._leave(group, block) for group in self.groups(block))

    def forget(self, block: BlockId) -> None:
        """The block is no longer needed (unpersisted): drop it and close every group that contains it."""
        for consumer in list(self._groups_of.get(block, ())):
            self.close(consumer)
        for state in (self._groups_of, self._in_memory, self._erc, self._size_bytes, self._cost_s, self._dataset):
            state.pop(block, None)

    # Queries ------------------------------------------------------------------------------------------------------

    def groups(self, block: BlockId) -> Iterator[PeerGroup]:
        """The open groups that contain the block."""
        return iter(self._groups_of.get(block, {}).values())

    def is_open(self, consumer: ConsumerId) -> bool:
        return consumer in self._groups

    def is_lost(self, block: BlockId) -> bool:
        """Was materialised once and is in no memory now."""
        return self._in_memory.get(block) is False

    def in_memory(self, block: BlockId) -> bool:
        return self._in_memory.get(block) is True

    def rc(self, block: BlockId) -> int:
        return len(self._groups_of.get(block, ()))

    def erc(self, block: BlockId) -> int:
        return self._erc.get(block, 0)

    def next_use(self, block: BlockId) -> float:
        """Position of the first open consumer of the block, infinity if there is none."""
        return min((group.position for group in self.groups(block)), default=math.inf)

    def next_stage(self, block: BlockId) -> float:
        return min((group.stage for group in self.groups(block)), default=math.inf)

    def size_bytes(self, block: BlockId) -> int:
        return self._size_bytes.get(block, 1)

    def cost_s(self, block: BlockId) -> float:
        """Seconds to restore the block once it is lost; 0 while it does not exist."""
        return self._cost_s.get(block, 0.0)

    def are_siblings(self, block: BlockId, other: BlockId) -> bool:
        """Whether both are parts of one dataset, such as partitions of an RDD."""
        dataset = self._dataset.get(block)
        return dataset is not None and dataset == self._dataset.get(other)

    # ---------------------------------------------------------------------------------------------------------------

    def _count_complete(self, group: PeerGroup, change: int) -> None:
        if not group.missing:
            for block in group.blocks:
                self._erc[block] = self._erc.get(block, 0) + change

    def _arrive(self, group: PeerGroup, block: BlockId) -> bool:
        group.missing.discard(block)
        self._count_complete(group, +1)
        return not group.missing

    def _leave(self, group: PeerGroup, block: BlockId) -> bool:
        was_complete = not group.missing
        self._count_complete(group, -1)
        group.missing.add(block)
        return was_complete
