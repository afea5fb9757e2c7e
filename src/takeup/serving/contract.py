"""The seams of serving: who orders the adapters of a cache, and the rules of a queue. Open this first.

All of them are pure. A rule of a queue is a function: which requests share a call, where a request goes, whether it is
let in, who is served next.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Sequence
from typing import Protocol, TypeAlias

from takeup.serving.traffic import Candidate

__all__ = ["Admit", "CachePolicy", "Choose", "Group", "Route"]

Group: TypeAlias = Callable[[Sequence[Candidate]], list[tuple[int, ...]]]
"""The numbers of the requests of each call."""
Route: TypeAlias = Callable[[Collection[Hashable], Sequence[Collection[Hashable]], Sequence[int]], int]
"""The instance for these adapters, given what each has in its cache and how busy it is."""
Admit: TypeAlias = Callable[[int, float, float], bool]
"""Given how many wait (below zero: how many places are free), and the seconds until its end and its deadline."""
Choose: TypeAlias = Callable[[Sequence[tuple[Hashable, ...]], Collection[Hashable]], int]
"""The place in the queue of the request to serve next, given what is in the cache."""


class CachePolicy(Protocol):
    """Decides which adapter leaves the cache of an instance. Pure: it knows what it was told and nothing else."""

    def used(self, adapter: Hashable) -> None:
        """A request used the adapter; it is in the cache now."""

    def left(self, adapter: Hashable) -> None:
        """The adapter left the cache."""

    def victim(self, cached: Collection[Hashable], queue: Sequence[tuple[Hashable, ...]]) -> Hashable:
        """The one of `cached` to leave; `queue` are the adapters of the requests to come, in order."""
