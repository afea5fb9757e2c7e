"""The group table: who will still read which blocks together, and which of these groups are complete in memory.

How it works. Every consumer that is not computed yet has one *group*: the blocks it will read. Of a block,

    rc(b)   the number of open groups that contain b                                  (Yu et al., INFOCOM 2017)
    erc(b)  those of them that miss nothing: each block that was ever materialised    (Yu et al., GLOBECOM 2017)
            is in memory. A block that does not exist yet does not make a group incomplete.

Both are kept current by four events: `open` and `close` of a consumer, `cached` and `lost` of a block. Events may come
twice or late; the table remembers which blocks are in memory, not how many messages it got, so repeating one changes
nothing. Everything DAG-aware policies rank by is a function of this table.

An engine says `cached` *before* it asks a policy for room, and `lost` if the block was refused: so an incoming block,
and the peers it completes, are judged as if it were in memory.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from takeup.caching.model import BlockId, ConsumerId, CostModel

__all__ = ["Group", "GroupTable"]


@dataclass(slots=True)
class Group:
    """The blocks one open consumer reads together. `position` is its place in the engine's own order, in bytes touched
    before it; `stage` is the same in stages; `missing` are its blocks that were materialised and are not in memory."""

    consumer: ConsumerId
    blocks: tuple[BlockId, ...]
    position: float
    stage: int
    missing: set[BlockId] = field(default_factory=set)


@dataclass(slots=True)
class GroupTable:
    """Counts per block over the open groups. `cost_model` says what one more missing input costs a consumer."""

    cost_model: CostModel = "additive"
    _groups: dict[ConsumerId, Group] = field(default_factory=dict)
    _groups_of: dict[BlockId, dict[ConsumerId, Group]] = field(default_factory=dict)
    _in_memory: dict[BlockId, bool] = field(default_factory=dict)
    _erc: dict[BlockId, int] = field(default_factory=dict)
    _size_bytes: dict[BlockId, int] = field(default_factory=dict)
    _cost_s: dict[BlockId, float] = field(default_factory=dict)

    # Events -------------------------------------------------------------------------------------------------------

    def open(self, consumer: ConsumerId, blocks: Iterable[BlockId], position: float = 0, stage: int = 0) -> None:
        """A consumer will read `blocks`. Opening it again replaces what was said before."""
        self.close(consumer)
        group = Group(consumer, tuple(dict.fromkeys(blocks)), position, stage)
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

    def describe(self, block: BlockId, size_bytes: int, cost_s: float) -> None:
        """What the block weighs, and how long it takes to bring it back once it is lost."""
        self._size_bytes[block] = size_bytes
        self._cost_s[block] = cost_s

    def cached(self, block: BlockId) -> int:
        """The block is in memory. Returns how many groups became complete by it."""
        was_lost = self.is_lost(block)
        self._in_memory[block] = True
        return sum(self._arrive(group, block) for group in self.groups(block)) if was_lost else 0

    def lost(self, block: BlockId) -> int:
        """The block exists but is in no memory. Returns how many complete groups broke: the workers must hear of it
        only when that is not zero."""
        was_lost = self.is_lost(block)
        self._in_memory[block] = False
        return 0 if was_lost else sum(self._leave(group, block) for group in self.groups(block))

    def forget(self, block: BlockId) -> None:
        """Nobody will ever need the block again (unpersisted): drop it and every group that waits for it."""
        for consumer in list(self._groups_of.get(block, ())):
            self.close(consumer)
        for state in (self._groups_of, self._in_memory, self._erc, self._size_bytes, self._cost_s):
            state.pop(block, None)

    # Questions ----------------------------------------------------------------------------------------------------

    def groups(self, block: BlockId) -> Iterator[Group]:
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
        """Seconds to bring the block back once it is lost; 0 while it does not exist."""
        return self._cost_s.get(block, 0.0)

    def saving_s(self, group: Group, block: BlockId) -> float:
        """What the consumer of `group` saves if `block` stays, given what it misses already."""
        if self.cost_model == "additive":
            return self.cost_s(block)
        others = group.missing - {block}
        if self.cost_model == "parallel":
            return max(0.0, self.cost_s(block) - max(map(self.cost_s, others), default=0.0))
        return 0.0 if others else sum(map(self.cost_s, group.blocks))

    # ---------------------------------------------------------------------------------------------------------------

    def _count_complete(self, group: Group, change: int) -> None:
        if not group.missing:
            for block in group.blocks:
                self._erc[block] = self._erc.get(block, 0) + change

    def _arrive(self, group: Group, block: BlockId) -> bool:
        group.missing.discard(block)
        self._count_complete(group, +1)
        return not group.missing

    def _leave(self, group: Group, block: BlockId) -> bool:
        was_complete = not group.missing
        self._count_complete(group, -1)
        group.missing.add(block)
        return was_complete
