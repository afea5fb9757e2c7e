"""Which instance serves a request: one that has its adapters already, as long as it is not much busier than the others.

Ten adapters fit on an instance, but a thousand on a hundred of them: where a request goes matters more for loads than
what is evicted there. Load is bounded as in consistent hashing with bounded loads (Mirrokni, Thorup, Zadimoghaddam,
SODA 2018): an instance that has served more than `slack` times the mean gets nothing until the others have caught up.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Sequence
from dataclasses import dataclass

from takeup.errors import BadInput

__all__ = ["Affinity", "least_busy"]

Caches = Sequence[Collection[Hashable]]


@dataclass(frozen=True, slots=True)
class Affinity:
    """The instance with most of the adapters; among equals the one that has served least."""

    slack: float = 1.25

    def __post_init__(self) -> None:
        if not self.slack >= 1:
            raise BadInput(f"the slack is {self.slack:g}; give at least 1, for somebody has to serve the mean")

    def __call__(self, adapters: Collection[Hashable], caches: Caches, num_served: Sequence[int]) -> int:
        """The number of the instance."""
        most = self.slack * (sum(num_served) + 1) / len(caches)
        free = [number for number, served in enumerate(num_served) if served < most]
        return max(free, key=lambda one: (sum(adapter in caches[one] for adapter in adapters), -num_served[one]))


def least_busy(adapters: Collection[Hashable], caches: Caches, num_served: Sequence[int]) -> int:
    """The instance that has served least, whatever it has in its cache."""
    return min(range(len(caches)), key=num_served.__getitem__)
