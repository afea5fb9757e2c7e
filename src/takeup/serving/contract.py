"""The seam of serving: who orders the adapters of a cache. Open this first."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Sequence
from typing import Protocol

__all__ = ["CachePolicy"]


class CachePolicy(Protocol):
    """Decides which adapter leaves the cache of an instance. Pure: it knows what it was told and nothing else."""

    def used(self, adapter: Hashable) -> None:
        """A request used the adapter; it is in the cache now."""

    def left(self, adapter: Hashable) -> None:
        """The adapter left the cache."""

    def victim(self, cached: Collection[Hashable], queue: Sequence[tuple[Hashable, ...]]) -> Hashable:
        """The one of `cached` to leave; `queue` are the adapters of the requests to come, in order."""
