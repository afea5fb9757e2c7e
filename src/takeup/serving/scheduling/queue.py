"""The queue of a real or simulated instance, with bounded overtaking, and its admission control."""

import math
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from takeup.errors import BadInput
from takeup.serving.contract import Choose

# Admission control: refuses a request when the queue is full or when it is expected to miss its deadline --------------


@dataclass(frozen=True, slots=True)
class Admission:
    """At most `max_waiting` requests wait; with `in_time`, requests expected to miss their deadline are refused.

    Work on an image that will be late delays all other requests, so early refusal serves more of them in time.
    """

    max_waiting: float = math.inf
    in_time: bool = False

    def __post_init__(self) -> None:
        if not self.max_waiting >= 0:
            raise BadInput(f"max_waiting is {self.max_waiting:g}; give how many may wait, from 0 up")

    def __call__(self, num_waiting: int, expected_s: float, left_s: float) -> bool:
        """Whether to admit a request that is expected to take `expected_s` and has `left_s` until its deadline."""
        return num_waiting < self.max_waiting and (not self.in_time or expected_s <= left_s)


# The queue of a real or simulated instance: FIFO, or reordered by a rule with a bound on overtaking -------------------
#
# Why checking the head is enough: every item that overtook the second item also overtook the first, so the head has the
# highest overtake count. While the head is below the bound, so are all others.

Item = TypeVar("Item")


class ReorderingQueue(Generic[Item]):
    """A queue of items with their adapters. `choose` selects the next, unless the head was overtaken `patience` times.

    Without `choose`, the queue is FIFO.
    """

    def __init__(self, choose: Choose | None = None, patience: int = 0) -> None:
        self._choose, self._patience = choose, patience
        self._items: list[Item] = []
        self._adapters: list[tuple[Hashable, ...]] = []
        self._num_overtaken: list[int] = []

    def __len__(self) -> int:
        return len(self._items)

    @property
    def items(self) -> Sequence[Item]:
        """The waiting items, in order of arrival."""
        return self._items

    @property
    def adapters(self) -> Sequence[tuple[Hashable, ...]]:
        """The adapters of the waiting items, in the same order."""
        return self._adapters

    def add(self, item: Item, adapters: tuple[Hashable, ...]) -> None:
        """Append an item."""
        self._items.append(item)
        self._adapters.append(adapters)
        self._num_overtaken.append(0)

    def pop(self, cached: Collection[Hashable]) -> Item:
        """Remove and return the next item for an instance whose cache holds `cached`."""
        is_free = self._choose is not None and self._num_overtaken[0] < self._patience
        return self.take(self._choose(self._adapters, cached) if is_free and self._choose else 0)

    def take(self, place: int) -> Item:
        """Remove the item at this index for service; all items before it count as overtaken once more."""
        for before in range(place):
            self._num_overtaken[before] += 1
        return self.remove(place)

    def remove(self, place: int) -> Item:
        """Remove the item at this index without service (expired or cancelled); no overtake count changes."""
        del self._adapters[place], self._num_overtaken[place]
        return self._items.pop(place)


# Fair sharing among tenants: round robin over their queues, and places that others cannot take -----------------------


class FairQueue(Generic[Item]):
    """One queue per tenant. Next is the tenant with the fewest running items, of these the one served longest ago."""

    def __init__(self, make: Callable[[], ReorderingQueue[Item]]) -> None:
        self._make = make
        self._queues: dict[str, ReorderingQueue[Item]] = {}
        self._last_served: dict[str, int] = {}
        self._num_served = 0
        self.running: Counter[str] = Counter()

    def __len__(self) -> int:
        return sum(map(len, self._queues.values()))

    @property
    def adapters(self) -> list[tuple[Hashable, ...]]:
        """The adapters of the waiting items, tenant by tenant."""
        return [adapters for queue in self._queues.values() for adapters in queue.adapters]

    @property
    def fewest_running(self) -> int:
        """Running items of the tenant that is next."""
        return min(self.running[tenant] for tenant in self._queues)

    def add(self, item: Item, adapters: tuple[Hashable, ...], tenant: str) -> None:
        """Append an item to the queue of this tenant."""
        self._queues.setdefault(tenant, self._make()).add(item, adapters)

    def pop(self, cached: Collection[Hashable]) -> tuple[Item, str]:
        """Remove the next item; returns it and its tenant."""
        tenant = min(self._queues, key=lambda one: (self.running[one], self._last_served.get(one, 0)))
        self._num_served += 1
        self._last_served[tenant] = self._num_served
        item = self._queues[tenant].pop(cached)
        self._drop_empty(tenant)
        return item, tenant

    def remove(self, item: Item, tenant: str) -> bool:
        """Remove a waiting item; False if it is not waiting."""
        queue = self._queues.get(tenant)
        if queue is None or item not in queue.items:
            return False
        queue.remove(queue.items.index(item))
        self._drop_empty(tenant)
        return True

    def _drop_empty(self, tenant: str) -> None:
        if not self._queues[tenant]:
            del self._queues[tenant]


def reserved_places(inside: Mapping[str, int], tenant: str, tenants: Collection[str], num_each: int) -> int:
    """How many free places are kept for tenants other than `tenant`, when each has a right to `num_each`."""
    return sum(max(0, num_each - inside.get(one, 0)) for one in tenants if one != tenant)


def expected_s(num_steps: int, step_s: float, *, steps_ahead: int, num_inside: int, max_running: int) -> float:
    """Estimated latency of a request that arrives now; if all slots are taken, steps ahead are spread evenly over them.

    `step_s` is the duration of one step of a running request, in seconds.
    """
    behind = steps_ahead / max_running if num_inside >= max_running else 0.0
    return (behind + num_steps) * step_s
