"""Values that are about to be freed count as gone, up to a bound, until the scheduler has spoken."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from takeup.caching.engines.dask.victim_order import PendingFrees


def test_what_is_added_counts_until_it_is_gone() -> None:
    leaving = PendingFrees(100)
    leaving.add("a", "reader", 30)
    leaving.add("b", "reader", 20)
    leaving.discard("a")
    leaving.discard("unknown")

    assert ("a" in leaving, "b" in leaving, leaving.total_bytes) == (False, True, 20)


def test_a_value_added_twice_counts_once() -> None:
    leaving = PendingFrees(100)
    leaving.add("a", "one", 30)
    leaving.add("a", "other", 30)

    assert (len(leaving), leaving.total_bytes) == (1, 30)
    assert leaving.confirm({"one"}) == []
    assert leaving.confirm({"other"}) == ["a"]


def test_the_oldest_make_room_for_new_ones() -> None:
    leaving = PendingFrees(100)
    leaving.add("a", "reader", 40)
    leaving.add("b", "reader", 40)

    assert leaving.add("c", "reader", 60) == ["a"]
    assert ("b" in leaving, "c" in leaving) == (True, True)


def test_a_value_larger_than_the_bound_finds_no_place() -> None:
    leaving = PendingFrees(100)

    assert leaving.add("a", "reader", 101) == ["a"]
    assert len(leaving) == leaving.total_bytes == 0


def test_the_scheduler_keeps_what_it_did_not_free() -> None:
    leaving = PendingFrees(100)
    leaving.add("a", "done", 10)
    leaving.add("b", "not yet", 10)

    assert leaving.confirm({"done", "somebody"}) == ["a"]
    assert ("a" in leaving, "b" in leaving, leaving.total_bytes) == (False, True, 10)


@given(st.lists(st.tuples(st.sampled_from("abcdef"), st.integers(1, 60)), max_size=30))
def test_the_bytes_are_those_of_the_values_and_never_above_the_bound(added: list[tuple[str, int]]) -> None:
    leaving, sizes = PendingFrees(100), dict[str, int]()
    for key, size_bytes in added:
        sizes[key] = size_bytes
        leaving.add(key, "reader", size_bytes)

        assert leaving.total_bytes == sum(size for key, size in sizes.items() if key in leaving) <= 100
