"""Replays a trace of adapters on a cache for each instance, and counts loads."""

from collections.abc import Callable, Hashable, Iterator, Sequence
from itertools import islice

from takeup.errors import BadInput
from takeup.serving.contract import CachePolicy, Choose
from takeup.serving.model import Access, AdapterReplay
from takeup.serving.scheduling.queue import ReorderingQueue

Sets = Sequence[tuple[Hashable, ...]]


def replay_adapters(
    name: str,
    make: Callable[[], CachePolicy],
    accesses: Sequence[Access],
    *,
    capacity: int,
    look_ahead: int = 0,
    choose: Choose | None = None,
    patience: int = 0,
) -> AdapterReplay:
    """Serve all requests on caches of `capacity` adapters, where `look_ahead` requests behind the first are known.

    They are served in order, or as `choose` selects, but no request is overtaken more than `patience` times.
    """
    if capacity < 1:
        raise BadInput(f"a cache of {capacity} adapters holds nothing; give at least 1")
    by_instance: dict[int, list[tuple[int, ...]]] = {}
    for access in accesses:
        by_instance.setdefault(access.instance, []).append(access.adapters)
    loads: list[int] = []
    for sets in by_instance.values():
        instance = AdapterCache(make(), capacity)
        loads += instance.serve_all(sets, look_ahead, choose, patience)
    num_uses = sum(len(access.adapters) for access in accesses)
    return AdapterReplay(name, len(accesses), num_uses, sum(loads), loads.count(0))


class AdapterCache:
    """The adapter cache of one instance."""

    def __init__(self, policy: CachePolicy, capacity: int) -> None:
        self._policy, self._capacity = policy, capacity
        self.cached: set[Hashable] = set()

    def serve_all(self, sets: Sets, look_ahead: int, choose: Choose | None, patience: int) -> Iterator[int]:
        """The loads of every request, in the order in which they are served."""
        coming = iter(sets)
        line = ReorderingQueue[tuple[Hashable, ...]](choose, patience)
        for adapters in islice(coming, look_ahead + 1):
            line.add(adapters, adapters)
        while line:
            adapters = line.pop(self.cached)
            for newcomer in islice(coming, 1):
                line.add(newcomer, newcomer)
            yield self.serve(adapters, line.adapters[:look_ahead])

    def serve(self, adapters: tuple[Hashable, ...], queue: Sets) -> int:
        """How many adapters of one request had to be loaded. They are used one after the other."""
        num_loads = 0
        for place, adapter in enumerate(adapters):
            if adapter not in self.cached:
                num_loads += 1
                self._make_room((adapters[place + 1 :], *queue))
                self.cached.add(adapter)
            self._policy.used(adapter)
        return num_loads

    def _make_room(self, queue: Sets) -> None:
        if len(self.cached) == self._capacity:
            victim = self._policy.victim(self.cached, queue)
            self.cached.remove(victim)
            self._policy.left(victim)
