"""The best turns on one core: against trying every order, and as a bound against the exact optimum."""

from __future__ import annotations

import math
from itertools import permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from takeup.core.arrays import Floats
from takeup.edge.policies.exact import Exact
from takeup.edge.solvers.column_generation import ListedPricer, list_groups, single_core_bound, slot_grid
from takeup.edge.solvers.compiled.pricing import best_single_core_schedule
from takeup.edge.traces.generators import paper_setting

EDGES_S = np.linspace(0.0, 8.0, 9)
ALL = 10**6


def slot_of(start_s: float) -> int:
    return min(int(start_s), len(EDGES_S) - 2)


def every_order(profits_j: Floats, due_s: Floats, run_s: Floats) -> float:
    """The best of all sets in all orders, each run as late as possible."""
    best_j = 0.0
    for size in range(1, len(due_s) + 1):
        for order in permutations(range(len(due_s)), size):
            free_s, gained_j = float(EDGES_S[-1]), 0.0
            for job in order:
                free_s = min(free_s, due_s[job]) - run_s[job]
                gained_j += profits_j[job, slot_of(free_s)] if free_s >= 0 else -math.inf
            best_j = max(best_j, gained_j)
    return best_j


@st.composite
def jobs(draw: st.DrawFn) -> tuple[Floats, Floats, Floats]:
    """Profits that never fall with a later start, deadlines and run times."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    num = draw(st.integers(1, 5))
    steps_j = rng.uniform(0.0, 1.0, (num, len(EDGES_S) - 1)) * rng.integers(0, 2, (num, len(EDGES_S) - 1))
    return np.cumsum(steps_j, axis=1) - rng.uniform(0.0, 2.0), rng.uniform(0.5, 8.0, num), rng.uniform(0.3, 4.0, num)


@settings(max_examples=200)
@given(jobs())
def test_no_order_gains_more(drawn: tuple[Floats, Floats, Floats]) -> None:
    assert best_single_core_schedule(drawn[0], EDGES_S, *drawn[1:], 0.0, ALL) == pytest.approx(every_order(*drawn))


def test_what_is_known_already_is_not_searched_for() -> None:
    profits_j = np.ones((3, 8))

    assert best_single_core_schedule(profits_j, EDGES_S, np.full(3, 8.0), np.ones(3), 0.0, ALL) == 3.0
    assert best_single_core_schedule(profits_j, EDGES_S, np.full(3, 8.0), np.ones(3), 7.0, ALL) == 7.0


def test_a_search_that_is_too_long_gives_no_bound() -> None:
    rng = np.random.default_rng(0)
    profits_j = np.cumsum(rng.uniform(0, 1, (20, 8)), axis=1)

    assert (
        best_single_core_schedule(profits_j, EDGES_S, rng.uniform(4, 8, 20), rng.uniform(0.5, 2, 20), 0.0, 100)
        == math.inf
    )


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("num_slots", [4, 64])
def test_any_prices_give_a_bound(seed: int, num_slots: int) -> None:
    rng = np.random.default_rng(seed)
    instance = paper_setting(rng, 6)
    grid = slot_grid(instance, num_slots)
    pricer = ListedPricer(instance, list_groups(instance), grid)
    optimum_j = Exact().allocate(instance).worth_j
    prices_j = rng.uniform(0.0, 0.5, instance.num_subcarriers)

    assert single_core_bound(instance, grid, pricer, prices_j, 0.0) >= optimum_j * (1 - 1e-9)


def test_free_subcarriers_leave_the_limit_of_the_core() -> None:
    instance = paper_setting(np.random.default_rng(3), 9)
    grid = slot_grid(instance, 64)
    pricer = ListedPricer(instance, list_groups(instance), grid)
    bound_j = single_core_bound(instance, grid, pricer, np.zeros(instance.num_subcarriers), 0.0)

    assert Exact().allocate(instance).worth_j <= bound_j < instance.worth_j.sum()
