"""What every forecaster promises, and how the models behave on demand whose law is known."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from takeup.cluster.forecast import make_forecaster
from takeup.cluster.forecast.anchored import AnchoredForecaster
from takeup.cluster.forecast.baselines import Persistence
from takeup.cluster.forecast.forecaster import Forecast, Forecaster, Scope
from takeup.core.arrays import Floats
from takeup.errors import BadInput, UnknownName

NAMES = ("anchored", "persistence", "last_week_peak")
NUM_SERIES = 3


def fresh(name: str, scope: Scope | None = None) -> Forecaster:
    return make_forecaster(name, scope)


def fed(name: str, demand: Floats, scope: Scope | None = None) -> Forecaster:
    model = fresh(name, scope)
    for hour, values in enumerate(demand):
        model.observe(hour, values)
    return model


def drawn(num_hours: int, seed: int = 0) -> Floats:
    rng = np.random.default_rng(seed)
    return np.abs(50.0 + np.cumsum(rng.integers(-4, 5, (num_hours, NUM_SERIES)).astype(np.float64), axis=0))


def arrays(forecast: Forecast) -> list[Floats]:
    return [each for part in (forecast.values, forecast.maxima) for each in (part.quantiles, part.mean, part.std)]


def assert_sound(forecast: Forecast, highest: float = np.inf) -> None:
    """Finite, within bounds, rising with the level; maxima above values and rising with the hours."""
    values, maxima = forecast.values.quantiles, forecast.maxima.quantiles
    assert all(np.isfinite(each).all() for each in arrays(forecast))
    assert all((each >= 0).all() for each in arrays(forecast))
    assert values.max() <= highest
    assert maxima.max() <= highest
    assert (np.diff(values, axis=2) >= 0).all()
    assert (np.diff(maxima, axis=2) >= 0).all()
    assert (np.diff(maxima, axis=1) >= 0).all()
    assert (maxima >= values).all()


# Promises of every model ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_the_first_hour_is_enough(name: str) -> None:
    forecast = fed(name, np.array([[10.0, 0.0, 500.0]])).forecast()

    assert forecast.values.quantiles.shape == (3, 4, 5)
    assert_sound(forecast)


@pytest.mark.parametrize("name", NAMES)
def test_every_hour_of_a_cold_start_is_sound(name: str) -> None:
    model = fresh(name)
    for hour, values in enumerate(drawn(100)):
        model.observe(hour, values)

        assert_sound(model.forecast(capacity=60.0), highest=60.0)


@settings(max_examples=15, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 40), st.integers(0, 10**6)), min_size=1, max_size=40), st.sampled_from(NAMES))
def test_any_demand_with_any_gaps_gives_a_sound_forecast(steps: list[tuple[int, int]], name: str) -> None:
    model, hour = fresh(name), 0
    for gap, value in steps:
        hour += gap
        model.observe(hour, [float(value), 0.0, 1.0])

    assert_sound(model.forecast())


@pytest.mark.parametrize("name", NAMES)
def test_the_future_changes_nothing_that_was_said(name: str) -> None:
    demand, other = drawn(80), drawn(80)
    other[60:] *= 7.0
    said: list[list[list[Floats]]] = []
    for future in (demand, other):
        model = fresh(name)
        said.append([])
        for hour, values in enumerate(future):
            model.observe(hour, values)
            said[-1].append(arrays(model.forecast()))

    for hour in range(60):
        for left, right in zip(said[0][hour], said[1][hour], strict=True):
            np.testing.assert_array_equal(left, right)
    assert any((left != right).any() for left, right in zip(said[0][60], said[1][60], strict=True))


@pytest.mark.parametrize("name", NAMES)
def test_asking_twice_or_never_before_gives_the_same_bytes(name: str) -> None:
    asked = fresh(name)
    for hour, values in enumerate(drawn(60)):
        asked.observe(hour, values)
        asked.forecast(capacity=10.0)

    for left, right in zip(arrays(asked.forecast()), arrays(fed(name, drawn(60)).forecast()), strict=True):
        assert left.tobytes() == right.tobytes()


@pytest.mark.parametrize("name", NAMES)
def test_new_series_may_appear(name: str) -> None:
    model = fed(name, drawn(50)[:, :1])
    model.observe(50, [10.0, 20.0, 400.0])
    model.observe(51, [10.0, 21.0, 400.0])

    forecast = model.forecast()

    assert forecast.values.quantiles.shape[0] == 3
    assert_sound(forecast)


@pytest.mark.parametrize("name", NAMES)
def test_bad_hours_are_refused_and_leave_the_model_as_it_was(name: str) -> None:
    model = fed(name, drawn(10))
    before = arrays(model.forecast())

    for hour, values in [(10, [1.0, float("nan"), 1.0]), (9, [1.0, 1.0, 1.0]), (10, [1.0])]:
        with pytest.raises(BadInput):
            model.observe(hour, values)

    for left, right in zip(before, arrays(model.forecast()), strict=True):
        np.testing.assert_array_equal(left, right)


def test_a_forecast_of_nothing_is_refused() -> None:
    with pytest.raises(BadInput, match="call observe"):
        make_forecaster().forecast()


def test_an_unknown_model_is_named_with_the_nearest_one() -> None:
    with pytest.raises(UnknownName, match="did you mean 'anchored'"):
        make_forecaster("ancored")


# Hand-computed answers ------------------------------------------------------------------------------------------------


def test_last_week_peak_is_the_highest_of_168_hours() -> None:
    demand = np.array([[900.0], *([float(hour % 7)] for hour in range(167)), [3.0]])

    forecast = fed("last_week_peak", demand).forecast()

    assert set(forecast.maxima.quantiles.ravel()) == {6.0}


def test_persistence_adds_the_plain_quantile_of_past_changes() -> None:
    demand = drawn(400)
    scope = Scope(num_hours=3, levels=(0.5, 0.9))

    forecast = fed("persistence", demand, scope).forecast()

    for hours in (1, 2, 3):
        origins = demand[:-hours]
        ahead = np.stack([demand[hour : len(origins) + hour] for hour in range(1, hours + 1)])
        change, peak = ahead[-1] - origins, ahead.max(axis=0) - origins
        for part, residuals in ((forecast.values, change), (forecast.maxima, peak)):
            bound = demand[-1][:, None] + np.quantile(residuals, scope.levels, axis=0, method="inverted_cdf").T
            np.testing.assert_allclose(part.quantiles[:, hours - 1], np.maximum(bound, 0.0))
            np.testing.assert_allclose(part.std[:, hours - 1], residuals.std(axis=0))


def test_persistence_forgets_what_left_its_window() -> None:
    quiet, wild = np.full((60, 1), 10.0), np.tile([[10.0], [90.0]], (30, 1))
    model = Persistence(num_window_hours=50)
    for hour, values in enumerate(np.vstack([wild, quiet])):
        model.observe(hour, values)

    assert set(model.forecast().maxima.quantiles.ravel()) == {10.0}


def test_a_gap_longer_than_memory_leaves_only_what_came_after() -> None:
    model = Persistence(num_window_hours=200)
    for hour, values in enumerate(np.tile([[10.0], [90.0]], (100, 1))):
        model.observe(hour, values)
    for hour in range(10**6, 10**6 + 60):
        model.observe(hour, [10.0])

    assert set(model.forecast().values.quantiles.ravel()) == {10.0}


# The default on known laws --------------------------------------------------------------------------------------------


def rolled(model: Forecaster, demand: Floats, start: int) -> tuple[Floats, Floats]:
    """Values and maxima as said from every origin since `start`: `[origin, series, hour, level]`."""
    values, maxima = [], []
    for hour in range(len(demand) - model.scope.num_hours):
        model.observe(hour, demand[hour])
        if hour >= start:
            forecast = model.forecast()
            values.append(forecast.values.quantiles)
            maxima.append(forecast.maxima.quantiles)
    return np.stack(values), np.stack(maxima)


def test_coverage_is_what_was_promised_on_stationary_demand() -> None:
    rng = np.random.default_rng(5)
    noise = np.zeros((1400, 6))
    for hour in range(1, 1400):
        noise[hour] = 0.9 * noise[hour - 1] + rng.normal(0.0, 3.0, 6)
    demand, scope = 200.0 + noise, Scope(num_hours=3, levels=(0.5, 0.8, 0.9, 0.95))

    values, maxima = rolled(AnchoredForecaster(scope), demand, start=500)

    ahead = np.stack([demand[500 + hours : len(demand) - 3 + hours] for hours in (1, 2, 3)], axis=2)
    for said, came in ((values, ahead), (maxima, np.maximum.accumulate(ahead, axis=2))):
        covered = (came[..., None] <= said).mean(axis=(0, 1))
        np.testing.assert_allclose(covered, np.broadcast_to(scope.levels, covered.shape), atol=0.025)


def test_a_daily_cycle_is_learnt() -> None:
    hour = np.arange(900)
    noise = np.random.default_rng(6).normal(0.0, 1.0, (900, 2))
    demand = 100.0 + 40.0 * np.sin(2 * np.pi * hour / 24)[:, None] + noise

    values, _ = rolled(AnchoredForecaster(), demand, start=700)

    ahead = np.stack([demand[700 + hours : len(demand) - 4 + hours] for hours in (1, 2, 3, 4)], axis=2)
    assert np.abs(ahead - values[..., 0]).mean() < 2.0  # persistence is off by 21 on average


def test_a_fall_of_demand_is_followed_at_once() -> None:
    rng = np.random.default_rng(7)
    demand = np.concatenate([np.full(500, 300.0), np.full(60, 20.0)])[:, None] + rng.integers(-3, 4, (560, 2)).astype(
        np.float64
    )

    bound = fed("anchored", demand).forecast().bound(hours=1, level=0.9)

    assert (bound < 40.0).all()
