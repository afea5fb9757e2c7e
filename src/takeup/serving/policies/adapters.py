"""Which adapter leaves the cache of an instance: by recency, by frequency, or by who in the queue still waits for it.

A request is ready only when *all* its adapters are there, so those of one request form a group, and the queue knows
the groups to come. A *reference* of an adapter is a waiting request that wants it; it is *effective* when the other
adapters of that request are in the cache too (Yu et al., "LERC: Coordinated Cache Management for Data-Parallel
Systems", GLOBECOM 2017). Among adapters that nobody waits for, the past decides.

The queue can do more than be looked at. An order of `ORDERS` says who is served next: `fewest_loads` takes the request
whose adapters are there already; `shared_loads` takes, among those that must load least, the one whose loads make most
others ready. Whoever serves bounds how often somebody is overtaken.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Sequence
from itertools import chain

__all__ = [
    "ADAPTER_POLICIES",
    "ORDERS",
    "AdapterPolicy",
    "GreedyDual",
    "LeastEffectiveReferenceCount",
    "LeastFrequentlyUsed",
    "LeastRecentlyUsed",
    "NextInQueue",
    "fewest_loads",
    "in_order",
    "shared_loads",
]

Rank = tuple[float, ...]
Queue = Sequence[tuple[Hashable, ...]]
FEW_USES = 4


class AdapterPolicy(ABC):
    """Orders the adapters of one instance. The lowest rank leaves first; ties go to the one unused for longest."""

    look_ahead = False
    """Whether it is shown the queue."""

    def __init__(self) -> None:
        self.last_used: dict[Hashable, int] = {}
        self._now = 0

    @abstractmethod
    def rank(self, adapter: Hashable, cached: Collection[Hashable], queue: Queue) -> Rank:
        """The worth of an adapter in the cache, while `queue` are the adapters of the requests to come, in order."""

    def used(self, adapter: Hashable) -> None:
        """A request used it; it is in the cache now."""
        self._now += 1
        self.last_used[adapter] = self._now

    def left(self, adapter: Hashable) -> None:
        """It left the cache."""
        del self.last_used[adapter]

    def victim(self, cached: Collection[Hashable], queue: Queue) -> Hashable:
        """The one to leave."""
        return min(cached, key=lambda adapter: (*self.rank(adapter, cached, queue), self.last_used[adapter]))


class LeastRecentlyUsed(AdapterPolicy):
    """Nothing but recency."""

    def rank(self, adapter: Hashable, cached: Collection[Hashable], queue: Queue) -> Rank:
        return ()


class LeastFrequentlyUsed(AdapterPolicy):
    """How often it was used since it came in."""

    def __init__(self) -> None:
        super().__init__()
        self.frequency: Counter[Hashable] = Counter()

    def rank(self, adapter: Hashable, cached: Collection[Hashable], queue: Queue) -> Rank:
        return (self.frequency[adapter],)

    def used(self, adapter: Hashable) -> None:
        super().used(adapter)
        self.frequency[adapter] += 1

    def left(self, adapter: Hashable) -> None:
        super().left(adapter)
        del self.frequency[adapter]


class GreedyDual(LeastFrequentlyUsed):
    """Frequency that ages: the priority of the last victim plus its own uses. Cherkasova's GDSF, for equal sizes."""

    def __init__(self) -> None:
        super().__init__()
        self.age = 0.0
        self.priority: dict[Hashable, float] = {}

    def rank(self, adapter: Hashable, cached: Collection[Hashable], queue: Queue) -> Rank:
        return (self.priority[adapter],)

    def used(self, adapter: Hashable) -> None:
        super().used(adapter)
        self.priority[adapter] = self.age + self.frequency[adapter]

    def left(self, adapter: Hashable) -> None:
        super().left(adapter)
        self.age = self.priority.pop(adapter)


class LeastEffectiveReferenceCount(AdapterPolicy):
    """Effective references in the queue, then references; then those that were used a few times only, then recency.

    Most adapters are used a few times and never again, and must not push out the others. How often an adapter was used
    is remembered when it leaves.
    """

    look_ahead = True

    def __init__(self) -> None:
        super().__init__()
        self.num_uses: Counter[Hashable] = Counter()

    def used(self, adapter: Hashable) -> None:
        super().used(adapter)
        self.num_uses[adapter] += 1

    def rank(self, adapter: Hashable, cached: Collection[Hashable], queue: Queue) -> Rank:
        wanting = [group for group in queue if adapter in group]
        num_effective = sum(all(peer in cached for peer in group) for group in wanting)
        return num_effective, len(wanting), self.num_uses[adapter] > FEW_USES


class NextInQueue(AdapterPolicy):
    """How soon the queue wants it, as far as the queue is known (Belady's rule); then recency."""

    look_ahead = True

    def rank(self, adapter: Hashable, cached: Collection[Hashable], queue: Queue) -> Rank:
        place = next((number for number, one in enumerate(chain.from_iterable(queue)) if one == adapter), math.inf)
        return (-place,)


ADAPTER_POLICIES: dict[str, type[AdapterPolicy]] = {
    "lru": LeastRecentlyUsed,
    "lfu": LeastFrequentlyUsed,
    "gdsf": GreedyDual,
    "lerc": LeastEffectiveReferenceCount,
    "next": NextInQueue,
}


def in_order(waiting: Queue, cached: Collection[Hashable]) -> int:
    """The place in the queue of the request to serve next: the first."""
    return 0


def fewest_loads(waiting: Queue, cached: Collection[Hashable]) -> int:
    """The one that has to load least, the first of these."""
    return min(range(len(waiting)), key=lambda place: (sum(one not in cached for one in waiting[place]), place))


def shared_loads(waiting: Queue, cached: Collection[Hashable]) -> int:
    """The one that has to load least; among these the one whose loads make most others ready, then the first."""
    missing = [frozenset(one for one in adapters if one not in cached) for adapters in waiting]
    num_ready = Counter(missing)  # whoever lacks the least and is made ready by these loads, lacks exactly these
    return min(range(len(waiting)), key=lambda place: (len(missing[place]), -num_ready[missing[place]], place))


ORDERS: dict[str, Callable[[Queue, Collection[Hashable]], int]] = {
    "in_order": in_order,
    "fewest_loads": fewest_loads,
    "shared_loads": shared_loads,
}
