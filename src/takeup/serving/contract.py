"""The interfaces of serving: the eviction policy of an adapter cache, and the rules of a queue. Read this first.

All implementations are pure. The rules of a queue are functions: batching (`Group`), routing (`Route`), admission
control (`Admit`) and the choice of the next request (`Choose`).
"""

from collections.abc import Callable, Collection, Hashable, Sequence
from typing import Protocol, TypeAlias

from takeup.serving.model import Candidate

Group: TypeAlias = Callable[[Sequence[Candidate]], list[tuple[int, ...]]]
"""The numbers of the requests of each call."""
Route: TypeAlias = Callable[[Collection[Hashable], Sequence[Collection[Hashable]], Sequence[int]], int]
"""The instance for these adapters, given what each has in its cache and how busy it is."""
Admit: TypeAlias = Callable[[int, float, float], bool]
"""Given how many wait (below zero: how many places are free), and the seconds until its end and its deadline."""
Choose: TypeAlias = Callable[[Sequence[tuple[Hashable, ...]], Collection[Hashable]], int]
"""The place in the queue of the request to serve next, given what is in the cache."""


class CachePolicy(Protocol):
    """Eviction policy for the adapter cache of one instance. Pure: its only inputs are the calls of its methods."""

    def used(self, adapter: Hashable) -> None:
        """Record that a request used the adapter, which is now in the cache."""

    def left(self, adapter: Hashable) -> None:
        """Record that the adapter was evicted."""

    def victim(self, cached: Collection[Hashable], queue: Sequence[tuple[Hashable, ...]]) -> Hashable:
        """The adapter of `cached` to evict; `queue` holds the adapters of the waiting requests, in order."""
