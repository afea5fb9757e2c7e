"""Prices: every round proves a bound, whole schedules sharpen it, and kernels agree with plain computations."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from itertools import permutations
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numba import njit

from edge.cells import optioned_instances
from takeup.core.arrays import Bools, Floats
from takeup.edge.model import Instance
from takeup.edge.policies.exact import Exact
from takeup.edge.solvers.compiled.core_schedules import Jobs, whole_runs_bound
from takeup.edge.solvers.compiled.uplinks import BLOCKED, Selection, select
from takeup.edge.solvers.market import Market
from takeup.edge.traces.generators import paper_setting, radio_tight_setting
from takeup.edge.traces.library import library_cell


@given(instance=optioned_instances(most_devices=6, most_subcarriers=5))
@settings(max_examples=25, deadline=None)
def test_every_round_of_prices_proves_a_bound(instance: Instance) -> None:
    if instance.num_devices == 0:
        return
    best_j = Exact().allocate(instance).worth_j
    market = Market(instance)
    bounds_j = []
    for _ in range(4):
        market.improve_prices(5)
        bounds_j.append(market.bound_j)

    assert bounds_j == sorted(bounds_j, reverse=True)
    assert bounds_j[-1] >= best_j * (1 - 1e-9)


@given(instance=optioned_instances(most_devices=6, most_subcarriers=5))
@settings(max_examples=25, deadline=None)
def test_windows_priced_one_by_one_and_divided_plans_keep_the_bound_valid(instance: Instance) -> None:
    if instance.num_devices == 0:
        return
    best_j = Exact().allocate(instance).worth_j
    market = Market(instance)
    market.improve_prices(5)
    listed, bounds_j = market.list_windows(), [market.bound_j]
    for _ in range(12):
        market.improve_prices(2)
        market.bound_by_whole_runs(2)
        market.split(5, 1)
        bounds_j.append(market.bound_j)

    assert listed == (instance.contiguous and not instance.radio.modulations)
    assert bounds_j == sorted(bounds_j, reverse=True)
    assert bounds_j[-1] >= best_j * (1 - 1e-9)


@pytest.mark.parametrize(("number", "most"), [(72, 0.05), (90, 0.15)])
def test_two_devices_that_need_most_of_the_band_do_not_both_count(number: int, most: float) -> None:
    market = Market(library_cell(number))
    for _ in range(3):
        market.improve_prices(60)
        market.use_prices()
        market.improve_plan(100)
    before = market.gap_share
    market.list_windows()
    market.improve_prices(60)
    for _ in range(25):
        market.split(80, 20)

    assert before > 0.2
    assert market.gap_share < most


@pytest.mark.parametrize("num_cores", [1, 2, 4])
def test_whole_schedules_sharpen_the_bound_and_keep_it_valid(num_cores: int) -> None:
    sharper = 0
    for seed in range(6):
        instance = replace(paper_setting(np.random.default_rng(seed), 9, 5, 400e6), num_cores=num_cores)
        market = Market(instance)
        market.improve_prices(100)
        before_j = market.bound_j
        market.bound_by_whole_runs(60)
        sharper += market.bound_j < before_j * (1 - 1e-6)

        assert market.bound_j >= Exact().allocate(instance).worth_j * (1 - 1e-9)
    assert sharper > 0


def test_more_rounds_give_a_better_bound_and_more_steps_a_better_plan() -> None:
    market = Market(radio_tight_setting(np.random.default_rng(1001), 20, 16, 4e9))
    worths_j, bounds_j = [market.worth_j], []
    for count in (5, 50, 200):
        market.improve_prices(count)
        market.use_prices()
        market.improve_plan(count)
        worths_j.append(market.worth_j)
        bounds_j.append(market.bound_j)

    assert bounds_j[0] > bounds_j[1] > bounds_j[2] > worths_j[-1]
    assert worths_j == sorted(worths_j)
    assert market.gap_share < 0.03


def test_a_search_with_the_same_seed_makes_the_same_plan() -> None:
    instance = radio_tight_setting(np.random.default_rng(3), 20, 16, 4e9)
    runs = []
    for seed in (1, 1, 2, 3):
        market = Market(instance, seed=seed)
        market.improve_prices(30)
        market.use_prices()
        worths_j = []
        for _ in range(20):
            market.improve_plan(1)
            worths_j.append(market.worth_j)
        runs.append(worths_j)

    assert runs[0] == runs[1]
    assert len({tuple(run) for run in runs}) == 3


def improved(market: Market, num_steps: int) -> Market:
    market.improve_prices(60)
    market.use_prices()
    market.improve_plan(num_steps)
    return market


def test_a_window_that_skips_faded_subcarriers_is_priced_exactly() -> None:
    alone = library_cell(217).only(np.array([7]))  # 12 subcarriers in use, in a window of 32 at least

    assert improved(Market(alone), 5).gap_share < 0.02


def test_a_device_that_takes_most_subcarriers_is_tried() -> None:
    market = improved(Market(library_cell(147)), 3_000)

    assert market.worth_j > 8.3  # 7.19 without the device that takes 59 of 106


# The choice of a group ------------------------------------------------------------------------------------------------


def best_group(terms: Floats, size: int, or_more: bool, contiguous: bool) -> float:
    """By looking at every group."""
    count, best = len(terms), math.inf
    for mask in range(1, 1 << count):
        members: Bools = (mask >> np.arange(count)) & 1 == 1
        places = np.flatnonzero(members)
        is_window = places[-1] - places[0] == len(places) - 1
        fits = len(places) >= size if or_more else len(places) == size
        if fits and (is_window or not contiguous) and (terms[members] < BLOCKED).all():
            best = min(best, float(terms[members].sum()))
    return best


def _select(chosen: Selection, size: int, or_more: bool, contiguous: bool) -> float:
    """Kernels without a wrapper for Python can only be called by others."""
    return float(select(chosen, size, or_more, contiguous))


select_from_python = cast(Callable[..., float], cast(Any, njit)(_select))


@given(seed=st.integers(0, 10_000), size=st.integers(1, 5), or_more=st.booleans(), contiguous=st.booleans())
@settings(max_examples=150, deadline=None)
def test_the_chosen_group_has_the_least_sum(seed: int, size: int, or_more: bool, contiguous: bool) -> None:
    random = np.random.default_rng(seed)
    terms = random.normal(size=7)
    terms[random.random(7) < 0.3] = BLOCKED
    chosen = Selection(terms, np.zeros(7, np.bool_), np.zeros(8), np.zeros(8, np.int64))
    found, expected = (
        select_from_python(chosen, size, or_more, contiguous),
        best_group(terms, size, or_more, contiguous),
    )

    if expected == math.inf:
        assert found >= BLOCKED / 2
    else:
        assert found == pytest.approx(expected)
        assert terms[chosen.members].sum() == pytest.approx(expected)


# Whole schedules of a core --------------------------------------------------------------------------------------------

EDGES_S = np.linspace(0.0, 8.0, 81)


def every_order(jobs: Jobs) -> float:
    """The best of all sets in all orders, each run as late as possible."""
    best_j = 0.0
    for size in range(1, len(jobs.due_s) + 1):
        for order in permutations(range(len(jobs.due_s)), size):
            free_s, earned_j = float(EDGES_S[-1]), 0.0
            for job in order:
                free_s = min(free_s, jobs.due_s[job]) - jobs.run_s[job]
                earned_j += jobs.earned_j[job, min(int(free_s * 10), 79)] if free_s >= 0 else -math.inf
            best_j = max(best_j, earned_j)
    return best_j


@given(seed=st.integers(0, 10_000), count=st.integers(1, 5))
@settings(max_examples=60, deadline=None)
def test_no_order_of_runs_earns_more_than_the_best_schedule(seed: int, count: int) -> None:
    random = np.random.default_rng(seed)
    earned_j = np.cumsum(random.uniform(0, 1, (count, 80)) * (random.random((count, 80)) < 0.1), axis=1)
    jobs = Jobs(earned_j, EDGES_S, random.uniform(0.5, 8.0, count), random.uniform(0.3, 4.0, count), np.zeros(count))
    found_j = whole_runs_bound(jobs, 1, 0.0, np.zeros(count), 0.0, 1, 100_000)
    shortened_j = whole_runs_bound(jobs, 1, 0.0, np.zeros(count), 0.0, 1, 0)

    assert found_j == pytest.approx(every_order(jobs), rel=3e-9)
    assert shortened_j >= found_j * (1 - 2e-9)


@pytest.mark.parametrize("number", [127, 150])
def test_whole_schedules_bound_plans_whose_rates_are_steps(number: int) -> None:
    market = Market(library_cell(number))  # a quick upload may gain less than a slow one, and still more than none
    for _ in range(10):
        market.improve_prices(20)
        market.use_prices()
        market.improve_plan(100)

    market.bound_by_whole_runs(10)

    assert market.worth_j <= market.bound_j
