"""State of one worker: future readers of its values and pins of running tasks, from which the next victim follows.

The guide stores no data. The spill buffer reports what was stored, read and removed; the plug-in reports announcements
and running tasks. Its one output is the victim. Ranks are computed by the policy over the worker's own group table.
Positions are steps in the scheduler's order; the policy's horizon is a share of its capacity, so the capacity is
given in steps too: how many of them touch as many bytes as the memory holds.

The scheduler's order is that of one thread. With several workers a consumer that still waits for another input runs
later than its position says, because runnable tasks overtake it. So its position is moved back by some steps until it
can run: when it is assigned to this worker, or another one starts it. When the worker is past that position and the
consumer still waits, it is moved to some steps after the running task: else memory fills with values whose readers are
overdue.

Among values of equal rank without a known reader, those last used for an older graph are evicted first: they may be
dead. Of those used for the same graph, first one with a copy on disk, because that is free; then the most recently used
one, because a next pass will probably read them in the same order, for which LRU is the worst order.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, fields, replace
from typing import cast

from takeup.caching.contract import PolicySpec
from takeup.caching.engines.dask.victim_order import (
    ORDINARY,
    STUCK,
    TINY,
    UNKNOWN,
    Order,
    PendingFrees,
    StockReplay,
    VictimOrder,
)
from takeup.caching.groups import GroupTable
from takeup.caching.policies.base import RankedPolicy

# What the plug-in did, on one worker or on all of them together -------------------------------------------------------


@dataclass(slots=True)
class DaskCounts:
    """Counts since the plug-in was installed on the current workers."""

    num_workers: int = 0
    """Workers whose spill order follows the policy; the others are on stock behaviour."""
    num_hits: int = 0
    """Reads that found the value in memory."""
    num_misses: int = 0
    """Reads that had to bring the value back."""
    num_evictions: int = 0
    num_evictions_with_readers: int = 0
    """Evictions of values that an announced task will still read."""
    num_clean_evictions: int = 0
    """Evictions that wrote nothing, because the copy on disk was still there."""
    written_bytes: int = 0
    saved_bytes: int = 0
    """Bytes that clean evictions did not write."""
    read_bytes: int = 0
    stock_written_bytes: int = 0
    """What Dask's own rule, replayed on names and sizes, would have written."""
    stock_read_bytes: int = 0
    copies_bytes: int = 0
    """Bytes on disk now that are copies of values in memory."""
    num_open_consumers: int = 0
    """Announced tasks that are not computed yet, summed over the workers that know them."""
    num_pinned: int = 0
    """Values that running tasks hold now."""

    @property
    def saved(self) -> str:
        """In a sentence, what the policy was worth."""
        stock = f"{self.stock_read_bytes / 1e6:,.0f} MB and {self.stock_written_bytes / 1e6:,.0f} MB"
        ours = f"{self.read_bytes / 1e6:,.0f} MB read and {self.written_bytes / 1e6:,.0f} MB written"
        return f"{ours}; Dask's own rule, replayed on names and sizes: {stock}"

    @classmethod
    def total(cls, parts: Iterable[DaskCounts]) -> DaskCounts:
        """The sum of all parts."""
        found = list(parts)
        return cls(**{field.name: sum(getattr(part, field.name) for part in found) for field in fields(cls)})


Announcement = tuple[Hashable, float, float, tuple[Hashable, ...]]
"""A consumer, its position, its stage, and blocks it will read."""
ConsumerUpdate = Announcement | tuple[Hashable, bool] | tuple[Hashable]
"""A consumer alone is over; with a flag, it runs on another worker, which will fetch its inputs."""

FILE_BYTES = 65_536  # fixed cost of a file read, in bytes; writes are not counted, a value is written once
FIRST_ESTIMATE = 16  # finished tasks before their mean size is used
HORIZON_SHARE = 0.1  # of the target: files of equal size cost the same, so the order stays close to next use
FIRST_HORIZON_STEPS = 1.6  # until then
BLOCKED_STEPS = 32  # steps per worker by which a consumer that cannot run yet is moved back
PENDING_FREE_SHARE = 0.2  # of the target: bound on values that are about to be freed and are not spilled
TINY_SHARE = 0.001  # of the target: values below it are evicted after all others
HAS_READERS = (0.0, 0.0, 0.0)


@dataclass(frozen=True, slots=True)
class SpillOptions:
    """`clean_copies`: keep the file of a value that was read back, so that evicting it again writes nothing."""

    clean_copies: bool = True


@dataclass(slots=True)
class WorkerValue:
    """A value of this worker, in memory or on its disk."""

    size_bytes: float
    is_clean: bool = False
    is_unannounced: bool = False
    is_stuck: bool = False
    last_graph: int = 0
    last_used: int = 0


class SpillGuide:
    """Ranks the values of one worker."""

    def __init__(self, spec: PolicySpec, target_bytes: float, options: SpillOptions) -> None:
        self.options = options
        self.counts = DaskCounts(num_workers=1)
        self.table = GroupTable()
        self.order = VictimOrder(self._order)
        self.pending_frees = PendingFrees(PENDING_FREE_SHARE * target_bytes)
        self.stock = StockReplay(target_bytes)
        self.follows_peers = spec.base == "lerc"
        self._target_bytes = target_bytes
        self._policy = cast(RankedPolicy, spec.make(self.table, FIRST_HORIZON_STEPS))
        self._uses_table = spec.uses_table
        self._values: dict[Hashable, WorkerValue] = {}
        self._unannounced: list[Hashable] = []
        self._groups_of: dict[Hashable, dict[tuple[Hashable, ...], tuple[float, int]]] = {}  # position and stage
        self._can_run: set[Hashable] = set()
        self._blocked: list[tuple[float, int, Hashable, tuple[Hashable, ...]]] = []  # a heap by overdue position
        self._last_position = -math.inf  # of the task that started last
        self._sent: set[Hashable] = set()  # to other workers, since the scheduler's last message
        self._fetched_by: dict[Hashable, set[Hashable]] = {}
        self._running: dict[Hashable, Sequence[Hashable]] = {}
        self._num_workers = 1
        self._num_graphs = self._now = self._num_finished = 0
        self._touched_bytes = 0.0

    # Messages of the scheduler ---------------------------------------------------------------------------------------

    def apply_message(
        self, news: Iterable[ConsumerUpdate], moved: Iterable[tuple[Hashable, bool]], num_workers: int, num_graphs: int
    ) -> None:
        """Apply a message. New values that still have no announced reader now count as having none."""
        self._num_workers, self._num_graphs = max(1, num_workers), num_graphs
        over: set[Hashable] = set()
        for consumer, *details in news:
            if len(details) > 1:
                self.opened(consumer, *details)
            elif details:
                self.left(consumer)
            else:
                self.closed(consumer)
                over.add(consumer)
        for block, is_lost in moved:
            self.moved(block, is_lost)
        self._sent.clear()
        self._changed(self.pending_frees.confirm(over))
        self._end_of_news()
        self.order.settle()

    def _end_of_news(self) -> None:
        for key in self._unannounced:
            if key in self._values:
                self._values[key].is_unannounced = False
                self.order.changed(key)
        self._unannounced.clear()

    def opened(self, consumer: Hashable, position: float, stage: float, blocks: tuple[Hashable, ...]) -> None:
        """A consumer will read these blocks, and possibly others given in another call."""
        self._groups_of.setdefault(consumer, {})[blocks] = position, int(stage)
        self._place(consumer, blocks)

    def left(self, consumer: Hashable) -> None:
        """Another worker runs the consumer: once it has fetched a block, it no longer needs the local copy."""
        self.assigned(consumer)
        for block, *others in list(self._groups_of.get(consumer, ())):
            if not others:
                self._fetched_by.setdefault(block, set()).add(consumer)
                if block in self._sent:
                    self._fetched(block)

    def closed(self, consumer: Hashable) -> None:
        """The consumer is computed, or no longer wanted."""
        self._can_run.discard(consumer)
        for blocks in self._groups_of.pop(consumer, ()):
            self._close(consumer, blocks)

    def moved(self, block: Hashable, is_lost: bool) -> None:
        """A block of another worker was evicted from its memory, or restored."""
        if block not in self._values and self.table.rc(block):
            (self._break if is_lost else self._complete)(block)

    # Local task states ------------------------------------------------------------------------------------------------

    def assigned(self, task: Hashable) -> None:
        """All inputs of the task exist and it is not running: it can be scheduled at any time."""
        if task in self._running:
            self.ended(task)
        if task not in self._can_run:
            self._can_run.add(task)
            for blocks in self._groups_of.get(task, ()):
                self._place(task, blocks)

    def started(self, task: Hashable, inputs: Sequence[Hashable]) -> None:
        """A task starts: pin its inputs."""
        self.ended(task)
        self._running[task] = inputs
        self.order.pin(inputs)
        self._touched_bytes += sum(self._values[key].size_bytes for key in inputs if key in self._values)
        self._postpone_overdue(task)

    def ended(self, task: Hashable) -> None:
        """The task stopped, for any reason: unpin its inputs."""
        self._can_run.discard(task)
        self.order.unpin(self._running.pop(task, ()))

    def seceded(self, task: Hashable) -> None:
        """The task gave its thread back and waits, such as for tasks it submitted; it has read its inputs."""
        self.ended(task)
        self.closed(task)

    def finished(self, task: Hashable) -> None:
        """The task has its result. Applied at once: the scheduler's message arrives a round trip later."""
        if task in self._running:
            inputs = self._running[task] if task in self._groups_of else ()  # consumers the scheduler did not announce
            self.ended(task)
            self.closed(task)
            self._expect_release(task, inputs)
            self._num_finished += 1
            self._estimate_capacity()

    # Events of the spill buffer ---------------------------------------------------------------------------------------

    def stored(self, key: Hashable, size_bytes: float, is_new: bool) -> bool:
        """The value is in memory, new or read back. True if other workers must be notified."""
        value = self._values.setdefault(key, WorkerValue(size_bytes))
        value.is_clean = not is_new and self.options.clean_copies
        if is_new:
            self._touched_bytes += size_bytes
            self._expect_readers(key, value)
        else:
            self.counts.num_misses += 1
            self._note_fetch(key)
        self.stock.use(key, size_bytes)
        self.table.describe(key, max(1, int(size_bytes)), size_bytes + FILE_BYTES)
        self._use(value)
        self.order.add(key)
        return self.follows_peers and self._complete(key)

    def read(self, key: Hashable) -> None:
        """The value was found in memory."""
        self.counts.num_hits += 1
        self._use(self._values[key])
        self.stock.use(key, self._values[key].size_bytes)
        self._note_fetch(key)
        self.order.touch(key)
        if not self.table.rc(key):
            self.order.changed(key)

    def evicted(self, key: Hashable) -> bool:
        """The value is on disk only. True if other workers must be notified."""
        self.counts.num_evictions += 1
        self.counts.num_evictions_with_readers += self.table.rc(key) > 0
        self.order.discard(key)
        self.pending_frees.discard(key)
        return self.follows_peers and self._break(key)

    def deleted(self, key: Hashable) -> None:
        """The value was deleted from this worker."""
        self.order.discard(key)
        self.pending_frees.discard(key)
        self.stock.forget(key)
        self._values.pop(key, None)
        self._fetched_by.pop(key, None)
        self._forget_if_unused(key)

    def stuck(self, key: Hashable) -> None:
        """The value could not be written: rank it after all others."""
        self._values[key].is_stuck = True
        self.order.changed(key)

    # Questions --------------------------------------------------------------------------------------------------------

    def is_stuck(self, key: Hashable | None) -> bool:
        return key in self._values and self._values[key].is_stuck

    def is_unannounced(self, key: Hashable) -> bool:
        """Whether this is a new value whose readers the scheduler has not announced yet."""
        return key in self._values and self._values[key].is_unannounced

    def now(self) -> DaskCounts:
        """The counters so far, with the current numbers of open consumers and pinned keys."""
        return replace(
            self.counts,
            num_open_consumers=len(self._groups_of),
            num_pinned=self.order.num_pinned,
            stock_written_bytes=int(self.stock.written_bytes),
            stock_read_bytes=int(self.stock.read_bytes),
        )

    # ------------------------------------------------------------------------------------------------------------------

    def _order(self, key: Hashable) -> Order:
        value = self._values[key]
        if not self._uses_table:
            return (self._class(value),)
        used = HAS_READERS if self.table.rc(key) else (value.last_graph, not value.is_clean, -value.last_used)
        return (UNKNOWN if key in self.pending_frees else self._class(value), *self._policy.rank(key), *used)

    def _class(self, value: WorkerValue) -> int:
        if value.is_stuck:
            return STUCK
        if value.is_unannounced:
            return UNKNOWN
        is_tiny = self._uses_table and value.size_bytes < TINY_SHARE * self._target_bytes
        return TINY if is_tiny else ORDINARY

    def _expect_readers(self, key: Hashable, value: WorkerValue) -> None:
        if self._uses_table and not self.table.rc(key):
            value.is_unannounced = True
            self._unannounced.append(key)

    def _expect_release(self, task: Hashable, inputs: Iterable[Hashable]) -> None:
        """Inputs of a finished task without another reader will be freed soon, unless a client holds them."""
        for key in inputs:
            if key in self.order and not self.table.rc(key) and self._class(self._values[key]) == ORDINARY:
                self._changed(self.pending_frees.add(key, task, self._values[key].size_bytes))
                self.order.changed(key)

    def _use(self, value: WorkerValue) -> None:
        self._now += 1
        value.last_graph, value.last_used = self._num_graphs, self._now

    def _note_fetch(self, key: Hashable) -> None:
        """A read of an unpinned value is a transfer to another worker; remember it, its `left` message may follow."""
        if not self.order.is_pinned(key):
            self._sent.add(key)
            self._fetched(key)

    def _fetched(self, key: Hashable) -> None:
        for consumer in self._fetched_by.pop(key, ()):
            groups = self._groups_of.get(consumer, {})
            if groups.pop((key,), None):
                self._close(consumer, (key,))
            if not groups:
                self._groups_of.pop(consumer, None)

    def _postpone_overdue(self, task: Hashable) -> None:
        """A task starts: move overdue consumers that cannot run yet to some steps after it."""
        for position, _ in self._groups_of.get(task, {}).values():
            self._last_position = position
        while self._blocked and self._blocked[0][0] < self._last_position:
            _, _, consumer, blocks = heapq.heappop(self._blocked)
            if blocks in self._groups_of.get(consumer, ()) and consumer not in self._can_run:
                self._place(consumer, blocks)

    def _place(self, consumer: Hashable, blocks: tuple[Hashable, ...]) -> None:
        position, stage = self._groups_of[consumer][blocks]
        if consumer not in self._can_run:
            position = max(position, self._last_position) + BLOCKED_STEPS * self._num_workers
            self._now += 1
            heapq.heappush(self._blocked, (position, self._now, consumer, blocks))
        self.table.open((consumer, blocks), blocks, position, stage)
        for block in blocks:
            self.pending_frees.discard(block)
        self._changed(blocks)

    def _close(self, consumer: Hashable, blocks: tuple[Hashable, ...]) -> None:
        self.table.close((consumer, blocks))
        self._changed(blocks)
        for block in blocks:
            if block in self._fetched_by:
                self._fetched_by[block].discard(consumer)
            self._forget_if_unused(block)

    def _forget_if_unused(self, key: Hashable) -> None:
        if key not in self._values and not self.table.rc(key):
            self.table.forget(key)

    def _complete(self, key: Hashable) -> bool:
        num_groups = self.table.cached(key)
        self._changed_with_peers(key)
        return num_groups > 0

    def _break(self, key: Hashable) -> bool:
        num_groups = self.table.lost(key)
        self._changed_with_peers(key)
        return num_groups > 0

    def _changed(self, keys: Iterable[Hashable]) -> None:
        for key in keys:
            self.order.changed(key)

    def _changed_with_peers(self, key: Hashable) -> None:
        for group in self.table.groups(key):
            self._changed(group.blocks)

    def _estimate_capacity(self) -> None:
        """Update the capacity in steps whenever the number of finished tasks doubles."""
        if self._num_finished >= FIRST_ESTIMATE and self._num_finished & (self._num_finished - 1) == 0:
            step_bytes = self._touched_bytes / self._num_finished / self._num_workers
            self._policy.capacity_bytes = HORIZON_SHARE * self._target_bytes / max(1.0, step_bytes)
            self.order.all_drifted()
