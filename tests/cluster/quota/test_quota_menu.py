"""Promises on a menu hold together: the oracle breaks the weakest first over many futures and counts."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from takeup.cluster.model import Offer
from takeup.cluster.quota.allocator import Menu, SpotPromise
from takeup.core.arrays import Floats

HOURS, PROBABILITIES, CAPACITY = (1.0, 2.0, 4.0), (0.8, 0.9), 100.0
MENU = Menu("A", HOURS, PROBABILITIES, ((40.0, 30.0), (30.0, 20.0), (10.0, 8.0)))


def futures(seed: int) -> Floats:
    """Demand in each of four hours, on 200 paths."""
    steps = np.random.default_rng(seed).normal(0, 8, (200, 4))
    return np.asarray(np.clip(60 + np.cumsum(steps, axis=1), 0, CAPACITY))


def menu_of(paths: Floats) -> Menu:
    """What the paths leave free: exact quantiles of their maxima."""
    highest = np.maximum.accumulate(paths, axis=1)
    free = [
        [CAPACITY - float(np.quantile(highest[:, int(hours) - 1], level, method="higher")) for level in PROBABILITIES]
        for hours in HOURS
    ]
    return Menu("A", HOURS, PROBABILITIES, tuple(map(tuple, free)))


def is_kept(promises: list[SpotPromise], path: Floats) -> list[bool]:
    """Hour by hour, promises are served in order of strength as long as they fit."""
    kept = [True] * len(promises)
    by_strength = sorted(range(len(promises)), key=lambda i: (-promises[i].probability, -promises[i].until_s))
    for hour, demand in enumerate(path):
        room, is_full = CAPACITY - demand + 1e-9, False
        for number in by_strength:
            if promises[number].until_s > hour * 3600 and kept[number]:
                room -= promises[number].num_gpus
                is_full = is_full or room < 0
                kept[number] = not is_full
    return kept


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 1000), st.lists(st.tuples(st.integers(0, 2), st.integers(0, 1), st.floats(0.05, 1)), max_size=8))
def test_all_promises_sold_are_kept_as_surely_as_they_say(seed: int, sales: list[tuple[int, int, float]]) -> None:
    paths = futures(seed)
    menu, sold = menu_of(paths), list[SpotPromise]()
    for row, column, share in sales:
        raw = menu._room(sold, 0.0, HOURS[row], PROBABILITIES[column])
        if raw > 0:
            sold.append(SpotPromise(raw * share, HOURS[row] * 3600, PROBABILITIES[column]))
    kept = np.array([is_kept(sold, path) for path in paths])

    for number, promise in enumerate(sold):
        assert kept[:, number].mean() >= promise.probability - 1e-9


@given(
    st.integers(0, 1000),
    st.lists(st.tuples(st.floats(0, 30), st.floats(0.1, 5), st.sampled_from(PROBABILITIES)), max_size=6),
)
def test_less_is_left_for_more_hours_and_higher_probabilities(
    seed: int, promises: list[tuple[float, float, float]]
) -> None:
    sold = [SpotPromise(gpus, hours * 3600, level) for gpus, hours, level in promises]
    table = np.array(menu_of(futures(seed)).available(sold, 0.0))

    assert (table >= 0).all()
    assert (np.diff(table, axis=0) <= 0).all()
    assert (np.diff(table, axis=1) <= 0).all()


@given(st.floats(0.1, 40), st.floats(0.1, 4), st.sampled_from(PROBABILITIES))
def test_selling_never_leaves_more(gpus: float, hours: float, level: float) -> None:
    before = np.array(MENU.available([], 0.0))
    after = np.array(MENU.available([SpotPromise(gpus, hours * 3600, level)], 0.0))

    assert (after <= before).all()


def test_an_empty_menu_is_what_is_free() -> None:
    assert MENU.available([], 0.0) == MENU.free_gpus


def test_a_long_promise_uses_up_the_shorter_ones() -> None:
    table = MENU.available([SpotPromise(6, 4 * 3600, 0.9)], 0.0)

    assert table == ((34, 24), (24, 14), (4, 2))


def test_a_short_promise_leaves_what_is_free_for_longer_ones() -> None:
    table = MENU.available([SpotPromise(25, 3600, 0.9)], 0.0)

    assert [row[1] for row in table] == [5, 5, 5]


def test_a_promise_that_is_over_uses_nothing() -> None:
    assert MENU.available([SpotPromise(30, 3600, 0.9)], 3600.0) == MENU.free_gpus


def test_a_promise_sold_for_more_than_the_menu_has_leaves_nothing_beside_it() -> None:
    assert MENU.available([SpotPromise(1, 9 * 3600, 0.9)], 0.0)[0] == (39, 29)
    assert MENU.available([SpotPromise(500, 3600, 0.9)], 0.0) == ((0, 0), (0, 0), (0, 0))


@pytest.mark.parametrize(
    ("num_gpus", "offers"),
    [
        (5, [(4, 0.9)]),
        (10, [(2, 0.9), (4, 0.8)]),
        (25, [(1, 0.9), (2, 0.8)]),
        (40, [(1, 0.8)]),
        (41, []),
    ],
)
def test_the_best_offers_are_those_that_nothing_surer_outlasts(
    num_gpus: int, offers: list[tuple[float, float]]
) -> None:
    assert MENU.offers(num_gpus, [], 0.0) == tuple(Offer("A", num_gpus, *offer) for offer in offers)
