"""Those who wait for an instance, real or simulated: served in order, or as chosen; nobody is overtaken too often.

How the bound is kept: who stands first was overtaken by everybody who overtook the second, so the first has been
overtaken most. As long as it may be overtaken once more, so may all others.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Sequence
from typing import Generic, TypeVar

from takeup.serving.contract import Choose

__all__ = ["Line", "expected_s"]

Item = TypeVar("Item")


class Line(Generic[Item]):
    """A queue of items with their adapters. `choose` says who is next, unless the first was overtaken `patience` times.

    Without `choose`, it is always the first.
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
        """All who wait, in the order in which they came."""
        return self._items

    @property
    def adapters(self) -> Sequence[tuple[Hashable, ...]]:
        """What they want."""
        return self._adapters

    def add(self, item: Item, adapters: tuple[Hashable, ...]) -> None:
        """Somebody comes."""
        self._items.append(item)
        self._adapters.append(adapters)
        self._num_overtaken.append(0)

    def pop(self, cached: Collection[Hashable]) -> Item:
        """The next to be served, by an instance that has `cached`."""
        is_free = self._choose is not None and self._num_overtaken[0] < self._patience
        return self.take(self._choose(self._adapters, cached) if is_free and self._choose else 0)

    def take(self, place: int) -> Item:
        """The one at this place leaves, and overtakes all before it."""
        for before in range(place):
            self._num_overtaken[before] += 1
        return self.remove(place)

    def remove(self, place: int) -> Item:
        """The one at this place gives up, and overtakes nobody."""
        del self._adapters[place], self._num_overtaken[place]
        return self._items.pop(place)


def expected_s(num_steps: int, step_s: float, *, steps_ahead: int, num_inside: int, max_running: int) -> float:
    """A guess of how long a request that comes now will take: if all places are taken, those inside share them evenly.

    `step_s` is how long a step takes somebody who runs.
    """
    behind = steps_ahead / max_running if num_inside >= max_running else 0.0
    return (behind + num_steps) * step_s
