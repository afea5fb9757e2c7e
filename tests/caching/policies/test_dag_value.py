"""The discounted saving per byte, what is said of a victim, and parts of one dataset under admission."""

from __future__ import annotations

import math

from takeup.caching.groups import GroupTable
from takeup.caching.policies import find_policy
from takeup.caching.policies.dag import NUM_CONSUMERS, RESOLUTION, DagValue


def rank_with(num_consumers: int) -> float:
    """The rank of a block of two bytes that costs one second, read at the positions 0, 1, 2, ..."""
    table = GroupTable()
    table.describe("a", 2, 1.0)
    for number in reversed(range(num_consumers)):
        table.open(number, ["a"], position=number)
    table.cached("a")
    return DagValue(table, capacity_bytes=10).rank("a")[0]


def test_the_nearest_consumers_count_and_later_ones_do_not() -> None:
    assert rank_with(NUM_CONSUMERS - 1) < rank_with(NUM_CONSUMERS) == rank_with(NUM_CONSUMERS + 3)


def test_the_value_is_the_logarithm_of_the_discounted_saving_per_byte() -> None:
    worth = math.log((1.0 + math.exp(-1 / 10)) / 2)

    assert rank_with(2) == math.floor(worth * RESOLUTION)


def test_the_reason_tells_the_value() -> None:
    table = GroupTable()
    table.describe("a", 2, 1.0)
    table.open(0, ["a"])
    table.cached("a")

    assert DagValue(table, capacity_bytes=10).explain("a") == "saves the least per byte (log value -0.693)"


def test_an_unread_block_replaces_a_part_of_its_own_dataset_only_once_it_is_awaited() -> None:
    table = GroupTable()
    policy = find_policy("lrc+admission").make(table, 1)
    for block in "ab":
        table.describe(block, 1, 1.0, dataset="parts")
        table.cached(block)
    policy.stored("a", 1)
    unread = policy.make_room("b", 1, 0, ())
    table.open("reader", ["b"])
    awaited = policy.make_room("b", 1, 0, ())

    assert (unread.admit, awaited.admit) == (False, True)
    assert [eviction.block for eviction in awaited.evict] == ["a"]
