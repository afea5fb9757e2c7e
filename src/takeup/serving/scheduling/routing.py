"""Cache-affinity routing: prefer the instance that has the request's adapters, unless it is much busier than others.

Ten adapters fit on an instance, but a thousand on a hundred of them: routing matters more for loads than eviction.
"""

from collections.abc import Callable, Collection, Hashable, Sequence
from dataclasses import dataclass

from takeup.errors import BadInput

Caches = Sequence[Collection[Hashable]]


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
        return most_adapters(adapters, caches, num_inside, free)


def least_busy(adapters: Collection[Hashable], caches: Caches, num_busy: Sequence[int]) -> int:
    """The least busy instance, regardless of its cache."""
    return min(range(len(caches)), key=num_busy.__getitem__)


def most_adapters(adapters: Collection[Hashable], caches: Caches, num_busy: Sequence[int], free: Sequence[int]) -> int:
    """The instance among `free` with most of the adapters; ties go to the least busy."""
    return max(free, key=lambda one: (sum(adapter in caches[one] for adapter in adapters), -num_busy[one]))


ROUTES: dict[str, Callable[[Collection[Hashable], Caches, Sequence[int]], int]] = {
    "least_busy": least_busy,
    "affinity": NearbyAffinity(),
}
