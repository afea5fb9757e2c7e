"""The history-based policies, by hand: what leaves, in which order, and what pins and sizes change."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pytest

from takeup.caching.contract import Policy
from takeup.caching.groups import GroupTable
from takeup.caching.policies.lru import LeastRecentlyUsed, SparkEviction

Make = Callable[[GroupTable, int], Policy]
ALL: list[Make] = [LeastRecentlyUsed, SparkEviction]


class Cache:
    """A store that carries out what the policy answers, with every size one unless told."""

    def __init__(self, make: Make, capacity_bytes: int) -> None:
        self.policy = make(GroupTable(), capacity_bytes)
        self.capacity_bytes = capacity_bytes
        self.sizes: dict[str, int] = {}

    def ask(self, block: str, size_bytes: int = 1, pinned: Iterable[str] = ()) -> str:
        """Read or store the block; answers the blocks that left for it, or `!` if it was refused."""
        if block in self.sizes:
            self.policy.read(block)
            return ""
        free_bytes = self.capacity_bytes - sum(self.sizes.values())
        room = self.policy.make_room(block, size_bytes, free_bytes, set(pinned))
        for victim in room.evict:
            del self.sizes[str(victim.block)]
            self.policy.removed(victim.block)
        if room.admit:
            self.sizes[block] = size_bytes
            self.policy.stored(block, size_bytes)
        return "".join(str(victim.block) for victim in room.evict) if room.admit else "!"

    def replay(self, blocks: str) -> list[str]:
        return [self.ask(block) for block in blocks]


@pytest.mark.parametrize("make", ALL)
def test_a_pinned_block_never_leaves(make: Make) -> None:
    cache = Cache(make, 2)
    cache.replay("ab")

    assert cache.ask("c", pinned="a") == "b"
    assert cache.ask("d", pinned="ac") == "!"
    assert set(cache.sizes) == {"a", "c"}


@pytest.mark.parametrize("make", ALL)
def test_a_refusal_says_why_and_evicts_nothing(make: Make) -> None:
    policy = make(GroupTable(), 2)
    policy.make_room("a", 1, 2, ())
    policy.stored("a", 1)

    room = policy.make_room("large", 3, 1, ())

    assert room.evict == ()
    assert not room.admit
    assert room.reason


@pytest.mark.parametrize("make", ALL)
def test_a_victim_comes_with_a_reason(make: Make) -> None:
    policy = make(GroupTable(), 1)
    policy.make_room("a", 1, 1, ())
    policy.stored("a", 1)

    (victim,) = policy.make_room("b", 1, 0, ()).evict

    assert victim.block == "a"
    assert victim.reason
