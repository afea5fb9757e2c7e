"""Models of a link: their states are counted from the measurement, and outages have one of their own."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from takeup.core.arrays import Floats
from takeup.streaming.advice.qoe import solve_cell
from takeup.streaming.capacity_fit import (
    LOWEST_LEVEL,
    NUM_FAST,
    NUM_SLOW,
    OUTAGE_LEVEL,
    WINDOWS_S,
    fit_capacity,
    link_models,
)
from takeup.streaming.chains import stationary_law
from takeup.streaming.model import Cell, Player
from takeup.streaming.simulate.cell import simulate_log


def noisy(num_seconds: int, seed: int = 0) -> Floats:
    """A link without outages, of mean about one."""
    return np.random.default_rng(seed).gamma(8.0, 1 / 8, num_seconds) + 0.2


def with_outages(every_s: int, lasting_s: int, num_seconds: int = 3000) -> Floats:
    return np.where(np.arange(num_seconds) % every_s < lasting_s, 0.0, noisy(num_seconds))


def test_every_number_of_states_is_tried_once() -> None:
    shapes = [tuple(states) for _, *states in link_models([noisy(400)])]

    assert len(shapes) == len(set(shapes)) == len(NUM_SLOW) * len(NUM_FAST) * len(WINDOWS_S)


def test_states_are_equal_parts_of_the_time_and_levels_average_to_the_mean() -> None:
    rates = noisy(4000)
    capacity = next(found for found, *states in link_models([rates]) if states[:2] == [4, 3])
    law = stationary_law(capacity.generator)

    assert law == pytest.approx(1 / 12, abs=0.01)
    assert law @ capacity.levels == pytest.approx(rates.mean(), rel=0.01)


@pytest.mark.parametrize("every_s", [100, 300, 1000])
def test_rare_outages_keep_a_state_of_their_own(every_s: int) -> None:
    fit = fit_capacity([1e6 * with_outages(every_s, 10)])
    law = stationary_law(fit.capacity.generator)
    dead = fit.capacity.levels < OUTAGE_LEVEL

    assert dead.any()
    assert fit.capacity.levels.min() >= LOWEST_LEVEL
    assert law[dead].sum() == pytest.approx(10 / every_s, rel=0.8)


def test_a_link_without_outages_has_no_state_for_them() -> None:
    capacity = next(found for found, *states in link_models([noisy(400)]) if states[:2] == [3, 1])

    assert len(capacity.levels) == 3
    assert capacity.levels.min() > OUTAGE_LEVEL


@pytest.mark.parametrize("place", [slice(0, 5), slice(-5, None)], ids=["begins", "ends"])
def test_a_log_that_begins_or_ends_with_its_only_outage_can_be_solved(place: slice) -> None:
    log = noisy(600)
    log[place] = 0.0
    fit = fit_capacity([1e6 * log])
    answer = solve_cell(Cell(1e6, 0.2e6, 0.04, 6, capacity=fit.capacity), Player(5.0))

    assert fit.capacity.levels.min() == LOWEST_LEVEL
    assert 0 < answer.stall_probability.value < 1


@given(st.lists(st.sampled_from([0.0, 1e-9, 0.01, 0.3, 1.0, 1.0001, 2.5, 40.0]), min_size=2, max_size=60))
@settings(deadline=None, max_examples=25)
def test_any_measurement_has_a_model_that_can_be_solved(rates: list[float]) -> None:
    assume(max(rates) > 0)
    fit = fit_capacity([1e6 * np.array(rates)])
    chance = solve_cell(Cell(fit.mean_bps, fit.mean_bps / 4, 0.03, 3, capacity=fit.capacity), Player(3.0))

    assert np.isfinite(fit.misfit)
    assert 0 <= chance.stall_probability.value <= 1


@pytest.mark.parametrize(("every_s", "lasting_s"), [(300, 15), (600, 30), (200, 8)])
def test_rare_outages_show_in_the_prediction(every_s: int, lasting_s: int) -> None:
    log = with_outages(every_s, lasting_s, 6000)
    cell, player = Cell(1e6, 0.2e6, 0.04, 6), Player(5.0)
    simulated = simulate_log(cell, player, np.ones(len(log)), log, num_videos=100_000, seed=1).stall_probability.value
    predicted = solve_cell(replace(cell, capacity=fit_capacity([log]).capacity), player).stall_probability.value
    constant = solve_cell(cell, player).stall_probability.value

    assert predicted == pytest.approx(simulated, rel=0.25)
    assert constant < 0.5 * simulated
