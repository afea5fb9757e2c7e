"""Who waits, and who is next: the bound on overtaking, orders, routes and admission."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from takeup.errors import BadInput
from takeup.serving.scheduling.adapters import ORDERS, shared_loads
from takeup.serving.scheduling.queue import Admission, FairQueue, ReorderingQueue, expected_s, reserved_places
from takeup.serving.scheduling.routing import ROUTES, NearbyAffinity


@given(st.lists(st.integers(0, 9), min_size=1, max_size=40), st.integers(0, 5), st.integers(1, 12))
def test_nobody_is_overtaken_more_often_than_allowed(picks: list[int], patience: int, num_standing: int) -> None:
    wishes = iter(picks * 2)

    def choose(waiting: Sequence[tuple[Hashable, ...]], cached: Collection[Hashable]) -> int:
        return next(wishes, 0) % len(waiting)

    line, served = ReorderingQueue[int](choose, patience), list[int]()
    for number in range(len(picks)):
        line.add(number, ())
        if len(line) >= num_standing:
            served.append(line.pop(()))
    while line:
        served.append(line.pop(()))

    assert sorted(served) == list(range(len(picks)))
    for place, number in enumerate(served):
        assert sum(other > number for other in served[:place]) <= patience


def test_without_a_choice_the_first_is_next() -> None:
    line = ReorderingQueue[str]()
    for name in "abc":
        line.add(name, (name,))

    assert line.pop({"c"}) == "a"
    assert list(line.items) == ["b", "c"]
    assert list(line.adapters) == [("b",), ("c",)]


def test_who_gives_up_overtakes_nobody() -> None:
    line = ReorderingQueue[str](lambda waiting, cached: len(waiting) - 1, patience=1)
    for name in "abcd":
        line.add(name, ())
    line.remove(3)

    assert [line.pop(()) for _ in range(3)] == ["c", "a", "b"]


def test_loads_that_make_most_others_ready_come_first() -> None:
    waiting = [(1,), (2,), (9, 3), (3,), (2, 9)]

    assert shared_loads(waiting, {9}) == 1  # 2 makes two ready, so does 3: the first of them
    assert shared_loads(waiting, {9, 1}) == 0  # nothing to load
    assert shared_loads([(1, 2), (1, 3), (3, 1)], ()) == 1
    assert shared_loads([(1, 2), (5,)], ()) == 1


@given(st.lists(st.lists(st.integers(0, 5), max_size=3, unique=True).map(tuple), min_size=1, max_size=8))
def test_every_order_names_somebody_who_waits(waiting: list[tuple[int, ...]]) -> None:
    cached = {0, 1}
    fewest = min(sum(one not in cached for one in adapters) for adapters in waiting)

    for name, choose in ORDERS.items():
        chosen = waiting[choose(waiting, cached)]
        assert name == "in_order" or sum(one not in cached for one in chosen) == fewest


def test_a_near_instance_with_the_adapters_is_taken_and_a_far_one_is_not() -> None:
    caches = [{1, 2}, {1}, set[int]()]

    assert NearbyAffinity(1)((1, 2), caches, [1, 0, 0]) == 0
    assert NearbyAffinity(1)((1, 2), caches, [2, 0, 0]) == 1
    assert NearbyAffinity(0)((9,), caches, [1, 1, 0]) == 2
    assert ROUTES["least_busy"]((1, 2), caches, [1, 1, 0]) == 2
    with pytest.raises(BadInput, match="from 0 up"):
        NearbyAffinity(-1)


def test_admission_looks_at_the_queue_and_at_the_deadline() -> None:
    assert Admission()(10**6, 1e9, 1.0)
    assert Admission(2)(1, 0.0, 0.0)
    assert not Admission(2)(2, 0.0, 0.0)
    assert Admission(in_time=True)(0, 1.0, 1.0)
    assert not Admission(in_time=True)(0, 1.1, 1.0)
    with pytest.raises(BadInput, match="from 0 up"):
        Admission(-1)


# Tenants --------------------------------------------------------------------------------------------------------------


def shared(*orders: tuple[str, str]) -> FairQueue[str]:
    queue: FairQueue[str] = FairQueue(ReorderingQueue)
    for item, tenant in orders:
        queue.add(item, (item,), tenant)
    return queue


def test_tenants_are_served_in_turn() -> None:
    queue = shared(("a1", "a"), ("a2", "a"), ("a3", "a"), ("b1", "b"), ("b2", "b"))

    assert len(queue) == 5
    assert [queue.pop(())[0] for _ in range(5)] == ["a1", "b1", "a2", "b2", "a3"]
    assert len(queue) == 0


def test_the_tenant_with_the_fewest_running_items_is_next() -> None:
    queue = shared(("a1", "a"), ("b1", "b"))
    queue.running["a"] = 1

    assert queue.pop(()) == ("b1", "b")
    assert queue.adapters == [("a1",)]


def test_only_an_item_that_waits_for_its_tenant_can_be_removed() -> None:
    queue = shared(("a1", "a"), ("b1", "b"))

    assert not queue.remove("a1", "b")
    assert not queue.remove("a1", "nobody")
    assert queue.remove("a1", "a")
    assert not queue.remove("a1", "a")
    assert queue.pop(()) == ("b1", "b")


def test_places_are_reserved_for_the_others_as_far_as_they_have_not_taken_them() -> None:
    inside = {"a": 5, "b": 1, "c": 3}

    assert reserved_places(inside, "a", ("a", "b", "c", "d"), 2) == 1 + 0 + 2
    assert reserved_places(inside, "b", ("a", "b", "c", "d"), 2) == 0 + 0 + 2


def test_steps_ahead_count_from_the_moment_all_slots_are_taken() -> None:
    times_s = [expected_s(10, 0.5, steps_ahead=40, num_inside=inside, max_running=4) for inside in (0, 3, 4, 5)]

    assert times_s == [5.0, 5.0, 10.0, 10.0]
