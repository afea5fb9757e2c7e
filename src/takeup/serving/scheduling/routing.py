"""Cache-affinity routing: prefer the instance that has the request's adapters, unless it is much busier than others.

Ten adapters fit on an instance, but a thousand on a hundred of them: routing matters more for loads than eviction.
`Affinity` bounds the total served by an instance, as in consistent hashing with bounded loads (Mirrokni, Thorup,
Zadimoghaddam, SODA 2018): above `slack` times the mean it gets no requests until the others have caught up.
`NearbyAffinity` uses the current load, and bounds how many more requests the instance may have than the least busy.
"""

from collections.abc import Callable, Collection, Hashable, Sequence
from dataclasses import dataclass

from takeup.errors import BadInput

Caches = Sequence[Collection[Hashable]]


@dataclass(frozen=True, slots=True)
class Affinity:
    """The instance with most of the adapters, of those below the load bound; ties go to the one that served least."""

    slack: float = 1.25

    def __post_init__(self) -> None:
        if not self.slack >= 1:
            raise BadInput(f"the slack is {self.slack:g}; give at least 1, for somebody has to serve the mean")

    def __call__(self, adapters: Collection[Hashable], caches: Caches, num_served: Sequence[int]) -> int:
        """The number of the instance."""
        most = self.slack * (sum(num_served) + 1) / len(caches)
        free = [number for number, served in enumerate(num_served) if served < most]
        return _best(adapters, caches, num_served, free)


@dataclass(frozen=True, slots=True)
class NearbyAffinity:
    """The instance with most of the adapters, of those with at most `num_more` more requests than the least busy."""

    num_more: int = 1

    def __post_init__(self) -> None:
        if self.num_more < 0:
            raise BadInput(f"num_more is {self.num_more}; give how many more may be there, from 0 up")

    def __call__(self, adapters: Collection[Hashable], caches: Caches, num_inside: Sequence[int]) -> int:
        """The number of the instance."""
        most = min(num_inside) + self.num_more
        free = [number for number, inside in enumerate(num_inside) if inside <= most]
        return _best(adapters, caches, num_inside, free)


def least_busy(adapters: Collection[Hashable], caches: Caches, num_busy: Sequence[int]) -> int:
    """The least busy instance, regardless of its cache."""
    return min(range(len(caches)), key=num_busy.__getitem__)


def _best(adapters: Collection[Hashable], caches: Caches, num_busy: Sequence[int], free: Sequence[int]) -> int:
    return max(free, key=lambda one: (sum(adapter in caches[one] for adapter in adapters), -num_busy[one]))


ROUTES: dict[str, Callable[[Collection[Hashable], Caches, Sequence[int]], int]] = {
    "least_busy": least_busy,
    "affinity": NearbyAffinity(),
}
