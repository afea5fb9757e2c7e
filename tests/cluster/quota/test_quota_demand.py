"""A forecaster of whole hours, asked at any moment."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from takeup.cluster.contract import Evidence
from takeup.cluster.forecast.forecaster import DemandDistribution, Forecast, Forecaster, Scope
from takeup.cluster.quota.allocator import HourlyDemand

HOUR_S = 3600.0


class Steps(Forecaster):
    """Says that demand rises by one GPU an hour, and by ten more at the higher level; remembers what it saw."""

    def __init__(self) -> None:
        super().__init__(Scope(4, (0.5, 0.9)))
        self.seen: list[tuple[int, float]] = []

    def observe(self, hour: int, values: npt.ArrayLike) -> None:
        super().observe(hour, values)
        self.seen.append((hour, float(np.asarray(values)[0])))

    def _predict(self) -> Forecast:
        hours = self.seen[-1][1] + np.arange(1.0, 5.0)[None, :]
        spread = DemandDistribution(np.stack([hours, hours + 10], axis=2), hours, np.ones(hours.shape))
        return Forecast((1, 2, 3, 4), self.scope.levels, spread, spread)


def evidence(now_h: float, hourly: npt.ArrayLike, demand: float, capacity: float = 100.0) -> Evidence:
    rows = np.asarray(hourly, np.float64)
    rows = np.stack([rows / 4, 3 * rows / 4], axis=1)
    return Evidence(now_h * HOUR_S, capacity, 0.0, 0.0, 0.0, ("a", "b"), np.array([demand, 0.0]), rows)


def asked(now_h: float, demand: float = 20.0, capacity: float = 100.0) -> HourlyDemand:
    forecast = HourlyDemand(Steps())
    forecast.update(evidence(now_h, np.full(int(now_h), 20.0), demand, capacity))
    return forecast


def test_before_the_first_hour_is_over_demand_may_rise_by_a_quarter_of_the_pool_in_an_hour() -> None:
    one_sigma = 0.8413447460685429

    assert asked(0.5, demand=20.0).max_quantiles((1.0, 4.0), one_sigma) == pytest.approx([20 + 25, 20 + 50])
    assert asked(0.5, demand=90.0).max_quantiles((1.0,), one_sigma) == [100]
    assert asked(0.0, demand=0.0, capacity=8.0).max_quantiles((4.0,), 0.5) == [0]


def test_the_guess_is_forgotten_with_the_first_hour() -> None:
    forecast = asked(0.5, demand=20.0)
    forecast.update(evidence(1.0, [20.0], 20.0))

    assert forecast.max_quantiles((1.0,), 0.5) == pytest.approx([21])


def test_at_the_full_hour_so_many_hours_are_asked_for_as_promised() -> None:
    assert asked(3.0).max_quantiles((0.5, 1.0, 2.0, 4.0), 0.5) == pytest.approx([21, 21, 22, 24])


def test_in_the_middle_of_an_hour_a_promise_reaches_into_the_next() -> None:
    assert asked(3.5).max_quantiles((0.5, 1.0, 2.0, 4.0), 0.9) == pytest.approx([31, 32, 33, 34])


def test_demand_above_the_last_hour_is_added_and_below_is_not_taken_off() -> None:
    assert asked(3.0, demand=27.0).max_quantiles((1.0,), 0.5) == pytest.approx([28])
    assert asked(3.0, demand=5.0).max_quantiles((1.0,), 0.5) == pytest.approx([21])


def test_demand_is_never_above_capacity() -> None:
    assert asked(3.0, demand=90.0, capacity=25.0).max_quantiles((1.0, 4.0), 0.9) == [25, 25]


def test_every_hour_is_learnt_once_with_all_organisations_together() -> None:
    model = Steps()
    forecast = HourlyDemand(model)
    for now_h in (0.0, 0.5, 1.0, 1.2, 4.0, 4.0, 4.9):
        forecast.update(evidence(now_h, np.arange(1.0, int(now_h) + 1), 3.0))

    assert model.seen == [(0, 1.0), (1, 2.0), (2, 3.0), (3, 4.0)]


@given(st.floats(1, 50), st.floats(0, 100), st.sampled_from([0.5, 0.9]))
def test_bounds_rise_with_hours_and_stay_within_capacity(now_h: float, demand: float, level: float) -> None:
    bounds = asked(now_h, demand).max_quantiles((0.5, 1.0, 2.0, 4.0), level)

    assert bounds == sorted(bounds)
    assert all(0 <= bound <= 100 for bound in bounds)
