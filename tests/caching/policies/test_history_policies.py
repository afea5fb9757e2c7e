"""The history-based policies, by hand: what leaves, in which order, and what pins and sizes change."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pytest

from takeup.caching.contract import Policy
from takeup.caching.groups import GroupTable
from takeup.caching.policies.gdsf import GreedyDualSizeFrequency
from takeup.caching.policies.lfu import LeastFrequentlyUsed
from takeup.caching.policies.lru import FirstInFirstOut
from takeup.caching.policies.s3fifo import S3Fifo, queue_bytes
from takeup.caching.policies.sieve import Sieve

Make = Callable[[GroupTable, int], Policy]
ALL: list[Make] = [FirstInFirstOut, GreedyDualSizeFrequency, LeastFrequentlyUsed, S3Fifo, Sieve]


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


def test_fifo_ignores_reads() -> None:
    assert Cache(FirstInFirstOut, 2).replay("abaac") == ["", "", "", "", "a"]


def test_lfu_drops_the_block_that_was_used_least() -> None:
    assert Cache(LeastFrequentlyUsed, 3).replay("aabbcd") == ["", "", "", "", "", "c"]


def test_lfu_breaks_ties_by_the_last_use() -> None:
    assert Cache(LeastFrequentlyUsed, 2).replay("abbac") == ["", "", "", "", "b"]


def test_lfu_forgets_a_block_that_left() -> None:
    cache = Cache(LeastFrequentlyUsed, 1)
    cache.replay("aaab")

    assert cache.replay("abb") == ["b", "a", ""]
    assert cache.replay("a") == ["b"]


def test_gdsf_with_unit_sizes_ages_popular_blocks_out() -> None:
    cache = Cache(GreedyDualSizeFrequency, 1)

    assert cache.replay("aaa") == ["", "", ""]
    assert cache.replay("b") == ["!"]  # a stands at 3, b would at 1: the age becomes 1
    assert cache.replay("b") == ["!"]  # 2
    assert cache.replay("b") == ["a"]  # 3, and the more recent of the two stays


def test_gdsf_prefers_to_keep_small_blocks() -> None:
    cache = Cache(GreedyDualSizeFrequency, 10)
    cache.ask("small", 1)
    cache.ask("large", 8)

    assert cache.ask("medium", 4) == "large"


def test_gdsf_sets_the_priority_of_a_newcomer_before_its_victims_raise_the_age() -> None:
    policy = GreedyDualSizeFrequency(GroupTable(), 1)
    policy.make_room("a", 1, 1, ())
    policy.stored("a", 1)
    policy.make_room("b", 1, 0, ())
    policy.removed("a")
    policy.stored("b", 1)

    assert policy.age == 1
    assert policy.priority == {"b": 1}


def test_gdsf_moves_nothing_when_the_newcomer_is_worth_less_than_one_of_its_victims() -> None:
    cache = Cache(GreedyDualSizeFrequency, 4)
    cache.ask("a", 2)
    cache.replay("bb")

    assert cache.ask("large", 4) == "!"
    assert cache.sizes == {"a": 2, "b": 1}


def test_sieve_passes_over_blocks_that_were_read_and_clears_their_mark() -> None:
    cache = Cache(Sieve, 3)
    cache.replay("abca")

    assert cache.replay("d") == ["b"]  # a was read and stays where it is
    assert cache.replay("e") == ["c"]  # the hand goes on from there
    assert cache.replay("f") == ["d"]
    assert cache.replay("g") == ["e"]


def test_sieve_starts_over_at_the_oldest_after_the_newest() -> None:
    cache = Cache(Sieve, 2)
    cache.replay("aba")

    assert cache.replay("c") == ["b"]  # the hand passed a and took the newest, so it starts over
    assert cache.replay("d") == ["a"]


def test_sieve_keeps_its_place_when_an_older_block_leaves_for_another_reason() -> None:
    policy = Sieve(GroupTable(), 4)
    for block in "abcd":
        policy.stored(block, 1)
    policy.read("a")
    policy.read("b")
    policy.make_room("e", 1, 0, ())
    policy.removed("c")
    policy.removed("a")

    assert policy.queue == ["b", "d"]
    assert [victim.block for victim in policy.make_room("e", 1, 0, ()).evict] == ["d"]


def test_s3fifo_shares_are_a_tenth_and_nine_tenths() -> None:
    assert queue_bytes(200) == (20, 180)


def test_s3fifo_drops_what_is_not_read_while_new() -> None:
    cache = Cache(S3Fifo, 10)
    cache.replay("abcdefghij")  # a in the small queue; the others fill main up

    assert cache.replay("k") == ["a"]
    assert cache.replay("l") == ["k"]


def test_s3fifo_brings_a_remembered_block_back_into_main() -> None:
    cache = Cache(S3Fifo, 10)
    cache.replay("abcdefghijk")

    assert cache.replay("a") == ["k"]
    assert isinstance(cache.policy, S3Fifo)
    assert "a" in cache.policy.main
    assert "k" in cache.policy.ghost


def test_s3fifo_moves_a_block_that_was_read_twice_to_main_and_starts_counting_anew() -> None:
    cache = Cache(S3Fifo, 10)
    cache.replay("abcdefghijaa")

    assert cache.replay("k") == ["b"]  # a moved, so main was above its share and its oldest left
    assert isinstance(cache.policy, S3Fifo)
    assert "a" in cache.policy.main
    assert cache.policy.reads["a"] == 0


def test_s3fifo_gives_a_read_block_of_main_another_round() -> None:
    cache = Cache(S3Fifo, 10)
    cache.replay("abcdefghijaab")

    assert cache.replay("k") == ["c"]


def test_s3fifo_ghost_forgets_the_oldest_name_first() -> None:
    policy = S3Fifo(GroupTable(), 10)
    for block in range(12):
        policy._remember(block, 1)

    assert list(policy.ghost) == list(range(3, 12))


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
