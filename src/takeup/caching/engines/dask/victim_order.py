"""The eviction order as a heap with lazy deletion: an update costs a microsecond or two, a victim no scan.

How it works. Every value in memory has one current entry `(class and rank, stamp, key)`; the smallest is the victim.
Entries are never searched for: a new one is pushed, and the stale one is skipped when popped. What keeps that cheap:

- `changed` only marks the key. Its rank is computed once, at the next call of `victim`, however often it changed.
- A read moves a value back, never forward: `touch` only writes a stamp, and the entry is corrected at the top.
- A pinned value at the top is removed from the heap and pushed again when it is unpinned.
- When all ranks have drifted, entries are updated a few at a time.

Classes, in order of eviction: ordinary values; tiny ones, because a thousand of them free less than one block; values
whose readers are not announced yet; values that could not be written.
"""

import heapq
from collections import Counter, OrderedDict
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator

# Values that are about to be freed: their last reader has run here, and the scheduler's message is in flight ----------
#
# Spilling them would write data that is dropped a few milliseconds later. So they count as freed already, up to a bound
# in bytes; a value that the scheduler's message did not free is still needed and counts as stored again.


class PendingFrees:
    """The values of one worker that are about to be freed, oldest first, at most `most_bytes` in total."""

    def __init__(self, most_bytes: float) -> None:
        self.most_bytes = most_bytes
        self.total_bytes = 0.0
        self._values: dict[Hashable, tuple[Hashable, float]] = {}  # the last reader, and the size

    def __contains__(self, key: Hashable) -> bool:
        return key in self._values

    def __len__(self) -> int:
        return len(self._values)

    def add(self, key: Hashable, reader: Hashable, size_bytes: float) -> list[Hashable]:
        """The last reader of the value has finished. Returns the oldest values, removed to stay within `most_bytes`."""
        self.discard(key)
        self._values[key] = reader, size_bytes
        self.total_bytes += size_bytes
        too_many = []
        while self.total_bytes > self.most_bytes:
            too_many.append(next(iter(self._values)))
            self.discard(too_many[-1])
        return too_many

    def discard(self, key: Hashable) -> None:
        """The value was removed, or has a reader again."""
        _, size_bytes = self._values.pop(key, (None, 0.0))
        self.total_bytes -= size_bytes

    def confirm(self, readers: Collection[Hashable]) -> list[Hashable]:
        """The scheduler confirmed that these readers finished: remove and return the values that it did not free."""
        kept = [key for key, (reader, _) in self._values.items() if reader in readers]
        for key in kept:
            self.discard(key)
        return kept


# What stock would have done: its rule replayed on the names and sizes of one worker's values ----------------------


class StockReplay:
    """Dask's own spilling: the least recently used value is written, and its file removed when it is read back."""

    def __init__(self, most_bytes: float) -> None:
        self.most_bytes = most_bytes
        self.read_bytes = self.written_bytes = self.held_bytes = 0.0
        self._held: OrderedDict[Hashable, float] = OrderedDict()
        self._on_disk: set[Hashable] = set()

    def use(self, key: Hashable, size_bytes: float) -> None:
        """The value was made or read."""
        if key in self._on_disk:
            self._on_disk.discard(key)
            self.read_bytes += size_bytes
        self.held_bytes += size_bytes - self._held.pop(key, 0.0)
        self._held[key] = size_bytes
        self.shrink_to(self.most_bytes)

    def shrink_to(self, most_bytes: float) -> None:
        while self.held_bytes > most_bytes and self._held:
            key, size_bytes = self._held.popitem(last=False)
            self._on_disk.add(key)
            self.held_bytes -= size_bytes
            self.written_bytes += size_bytes

    def forget(self, key: Hashable) -> None:
        """The value was deleted."""
        self.held_bytes -= self._held.pop(key, 0.0)
        self._on_disk.discard(key)


ORDINARY, TINY, UNKNOWN, STUCK = range(4)
_SLACK = 64  # stale entries that are not worth a clean-up
_BACKLOG = 10_000  # changed keys that may be pending until the next victim
_FEW = 64

Order = tuple[float, ...]
Entry = tuple[Order, int, Hashable]


class VictimOrder:
    """Keys by `order(key)`, lowest first, ties to the least recent; pinned keys are skipped."""

    def __init__(self, order: Callable[[Hashable], Order]) -> None:
        self._order = order
        self._heap: list[Entry] = []
        self._current: dict[Hashable, Entry | None] = {}  # None: off the heap because it is pinned
        self._stamps: dict[Hashable, int] = {}
        self._changed: set[Hashable] = set()
        self._drifted: list[Hashable] = []
        self._pins: Counter[Hashable] = Counter()
        self._now = 0

    def __len__(self) -> int:
        return len(self._stamps)

    def __contains__(self, key: Hashable) -> bool:
        return key in self._stamps

    def __iter__(self) -> Iterator[Hashable]:
        return iter(self._stamps)

    @property
    def num_pinned(self) -> int:
        return len(self._pins)

    def add(self, key: Hashable) -> None:
        """The key was stored in memory."""
        self._stamp(key)
        self._changed.add(key)

    def discard(self, key: Hashable) -> None:
        """The key was removed from memory. Its pins remain: they belong to tasks, not to memory."""
        self._stamps.pop(key, None)
        self._current.pop(key, None)
        self._changed.discard(key)

    def touch(self, key: Hashable) -> None:
        """The key was read."""
        if key in self._stamps:
            self._stamp(key)

    def changed(self, key: Hashable) -> None:
        """The order of the key may have changed."""
        if key in self._stamps:
            self._changed.add(key)

    def all_drifted(self) -> None:
        """Every order may have changed slightly; update them lazily."""
        self._drifted = list(self._stamps)

    def settle(self) -> None:
        """Bound the backlog of changed keys; called periodically to limit the latency of `victim`."""
        while len(self._changed) > _BACKLOG:
            self._rank_anew(self._changed.pop())

    def pin(self, keys: Iterable[Hashable]) -> None:
        """A running task holds these keys, in memory or not yet; evicting them would free nothing."""
        self._pins.update(keys)

    def unpin(self, keys: Iterable[Hashable]) -> None:
        """The task that pinned these keys has ended."""
        for key in keys:
            self._pins[key] -= 1
            if self._pins[key] <= 0:
                del self._pins[key]
                self.changed(key)

    def is_pinned(self, key: Hashable) -> bool:
        return key in self._pins

    def victim(self) -> Hashable | None:
        """The unpinned key to evict next, or None. It remains in the order until it is discarded."""
        self._refresh()
        while self._heap:
            entry = self._heap[0]
            order, stamp, key = entry
            if self._current.get(key) is not entry:
                heapq.heappop(self._heap)
            elif key in self._pins:
                heapq.heappop(self._heap)
                self._current[key] = None
            elif stamp != self._stamps[key]:
                self._current[key] = entry = (order, self._stamps[key], key)
                heapq.heapreplace(self._heap, entry)
            else:
                return key
        return None

    def any_victim(self) -> Hashable | None:
        """The key to evict next; if all are pinned, the least recently used of them."""
        key = self.victim()
        return min(self._stamps, key=self._stamps.__getitem__, default=None) if key is None else key

    def _stamp(self, key: Hashable) -> None:
        self._now += 1
        self._stamps[key] = self._now

    def _refresh(self) -> None:
        for key in self._changed:
            self._rank_anew(key)
        self._changed.clear()
        for _ in range(min(_FEW, len(self._drifted))):
            self._rank_anew(self._drifted.pop())
        if len(self._heap) > 2 * len(self._stamps) + _SLACK:
            self._heap = [entry for entry in self._current.values() if entry is not None]
            heapq.heapify(self._heap)

    def _rank_anew(self, key: Hashable) -> None:
        if key in self._stamps:
            current, order = self._current.get(key), self._order(key)
            if current is None or current[0] != order:
                self._current[key] = entry = (order, self._stamps[key], key)
                heapq.heappush(self._heap, entry)
