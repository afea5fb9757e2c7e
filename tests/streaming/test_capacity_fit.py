"""Fitting a capacity: against a link whose law is known, and on logs that are short, constant or broken."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from takeup.core.arrays import Floats
from takeup.errors import BadInput
from takeup.streaming.advice.qoe import solve_cell
from takeup.streaming.capacity_fit import LOWEST_LEVEL, fit_capacity
from takeup.streaming.chains import stationary_law
from takeup.streaming.model import Capacity, CapacityFit, Cell, Player

STAY_S = 60.0
TRUTH = Capacity(np.array([0.5, 1.5]), np.array([[-1.0, 1.0], [1.0, -1.0]]) / STAY_S)


def two_levels(num_visits: int = 120) -> Floats:
    """A link that stays at either level for exponential times, taken at their quantiles to leave little to luck."""
    stays_s = np.ceil(-STAY_S * np.log(1 - (np.arange(num_visits) + 0.5) / num_visits)).astype(int)
    rng = np.random.default_rng(4)
    pairs = zip(rng.permutation(stays_s), rng.permutation(stays_s), strict=True)
    return 1e6 * np.concatenate([part for low, high in pairs for part in (np.full(low, 0.5), np.full(high, 1.5))])


@pytest.fixture(scope="module")
def fit() -> CapacityFit:
    return fit_capacity([two_levels()])


# The model ------------------------------------------------------------------------------------------------------------


def test_levels_average_to_one_over_the_law_they_keep(fit: CapacityFit) -> None:
    law = stationary_law(fit.capacity.generator)

    assert law @ fit.capacity.levels == pytest.approx(1.0, abs=0.01)
    assert fit.mean_bps == pytest.approx(two_levels().mean())


def test_rates_between_levels_sum_to_zero_and_none_is_negative(fit: CapacityFit) -> None:
    rates = fit.capacity.generator

    assert rates.sum(axis=1) == pytest.approx(0.0, abs=1e-12)
    assert (rates - np.diag(np.diag(rates)) >= 0).all()


@pytest.mark.parametrize(("load", "start_s"), [(0.5, 3.0), (0.5, 8.0), (0.8, 3.0), (0.8, 8.0), (0.8, 20.0)])
def test_a_link_of_two_levels_is_recovered(fit: CapacityFit, load: float, start_s: float) -> None:
    speed = 5.0
    cell = Cell(1e6, 1e6 / speed, load * speed / 60, 6, capacity=TRUTH)
    true = solve_cell(cell, Player(start_s)).stall_probability.value
    fitted = solve_cell(replace(cell, capacity=fit.capacity), Player(start_s)).stall_probability.value
    constant = solve_cell(replace(cell, capacity=None), Player(start_s)).stall_probability.value

    assert fitted == pytest.approx(true, rel=0.25)
    assert constant < 0.3 * true


def test_the_same_measurement_gives_the_same_model(fit: CapacityFit) -> None:
    again = fit_capacity([two_levels()])

    assert again.capacity.levels.tolist() == fit.capacity.levels.tolist()
    assert again.capacity.generator.tolist() == fit.capacity.generator.tolist()
    assert replace(again, capacity=fit.capacity) == fit


def test_only_the_shape_matters_and_the_mean_is_kept() -> None:
    log = two_levels(6)
    small, large = fit_capacity([log]), fit_capacity([1000 * log])

    assert large.mean_bps == pytest.approx(1000 * small.mean_bps)
    assert large.capacity.levels == pytest.approx(small.capacity.levels)
    assert large.capacity.generator == pytest.approx(small.capacity.generator)


def test_steps_from_one_measurement_to_the_next_are_not_counted() -> None:
    apart = fit_capacity([np.full(40, 1e6), np.full(40, 3e6)])
    joined = fit_capacity([np.concatenate([np.full(40, 1e6), np.full(40, 3e6)])])

    assert not apart.capacity.generator.any()
    assert joined.capacity.generator.any()


def test_a_constant_link_has_one_level() -> None:
    fit = fit_capacity([np.full(700, 5e6)])

    assert fit.capacity.levels.tolist() == [1.0]
    assert fit.capacity.generator.tolist() == [[0.0]]
    assert fit.misfit == pytest.approx(0.0, abs=1e-9)


def test_a_short_constant_link_is_fitted_as_well_as_a_long_one() -> None:
    assert fit_capacity([np.full(120, 5e6)]).misfit == pytest.approx(0.0, abs=1e-9)


def test_a_link_with_outages_has_a_level_near_zero_and_can_be_solved() -> None:
    log = np.where(np.arange(900) % 90 < 30, 0.0, 6e6)
    fit = fit_capacity([log])
    cell = Cell(fit.mean_bps, 1e6, 0.03, 4, capacity=fit.capacity)

    assert fit.capacity.levels.min() >= LOWEST_LEVEL
    assert fit.capacity.levels.min() < 0.5
    assert 0 < solve_cell(cell, Player(5.0)).stall_probability.value < 1


@pytest.mark.parametrize("pieces", [[], [np.array([1e6])], [np.array([]), np.array([1e6])], [np.zeros(100)]])
def test_too_little_to_fit_is_one_sentence(pieces: list[Floats]) -> None:
    with pytest.raises(BadInput, match="less than two seconds of throughput; give a longer one"):
        fit_capacity(pieces)
