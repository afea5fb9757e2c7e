"""Replays adapter traces with routing: every request goes to the instance that a rule selects.

`Affinity` bounds the total served by an instance, as in consistent hashing with bounded loads (Mirrokni, Thorup,
Zadimoghaddam, SODA 2018): above `slack` times the mean it gets no requests until the others have caught up.
"""

from collections.abc import Callable, Collection, Hashable, Sequence
from dataclasses import dataclass

from takeup.errors import BadInput
from takeup.serving.contract import CachePolicy, Route
from takeup.serving.model import Access, AdapterReplay
from takeup.serving.scheduling.routing import Caches, most_adapters
from takeup.serving.simulate.adapter_cache import AdapterCache


@dataclass(frozen=True, slots=True)
class Affinity:
    """The instance with most of the adapters, of those below the load bound; ties go to the one that served least."""

    slack: float = 1.25

    def __post_init__(self) -> None:
        if not self.slack >= 1:
            raise BadInput(f"the slack is {self.slack:g}; give at least 1")

    def __call__(self, adapters: Collection[Hashable], caches: Caches, num_served: Sequence[int]) -> int:
        """The number of the instance."""
        most = self.slack * (sum(num_served) + 1) / len(caches)
        free = [number for number, served in enumerate(num_served) if served < most]
        return most_adapters(adapters, caches, num_served, free)


def replay_routed(
    name: str,
    make: Callable[[], CachePolicy],
    accesses: Sequence[Access],
    *,
    capacity: int,
    num_instances: int,
    route: Route,
) -> AdapterReplay:
    """Serve all requests in order, each on the instance that `route` selects instead of the one in the trace."""
    if capacity < 1 or num_instances < 1:
        raise BadInput(f"found {num_instances} instances with {capacity} adapters each; give at least 1 of both")
    instances = [AdapterCache(make(), capacity) for _ in range(num_instances)]
    caches = [instance.cached for instance in instances]
    num_served = [0] * num_instances
    loads = []
    for access in accesses:
        number = route(access.adapters, caches, num_served)
        num_served[number] += 1
        loads.append(instances[number].serve(access.adapters, ()))
    num_uses = sum(len(access.adapters) for access in accesses)
    return AdapterReplay(name, len(accesses), num_uses, sum(loads), loads.count(0))
