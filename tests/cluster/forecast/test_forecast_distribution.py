"""Distributions: selection and limits."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import norm

from takeup.cluster.forecast.forecaster import DemandDistribution, Forecast, Scope
from takeup.errors import BadInput

LEVELS = (0.5, 0.9)


def normal(means: list[float], stds: list[float]) -> Forecast:
    """One hour ahead."""
    mean, std = np.array(means)[:, None], np.array(stds)[:, None]
    spread = DemandDistribution(mean[:, :, None] + std[:, :, None] * norm.ppf(LEVELS), mean, std)
    return Forecast((1,), LEVELS, spread, spread)


def test_hours_and_levels_are_selected_by_name() -> None:
    spread = DemandDistribution(np.arange(12.0).reshape(1, 4, 3), np.arange(4.0)[None], np.ones((1, 4)))
    forecast = Forecast((1, 2, 3, 4), (0.5, 0.8, 0.9), spread, spread)

    chosen = forecast.select([4, 1], [0.9])

    assert chosen.values.quantiles.tolist() == [[[11.0], [2.0]]]
    assert chosen.bound(4, 0.9).tolist() == [11.0]
    assert forecast.bound(2, 0.5, of="value").tolist() == [3.0]


@pytest.mark.parametrize(("hours", "level", "said"), [(9, 0.9, "hour 9"), (1, 0.95, "level 0.95")])
def test_what_was_not_forecast_is_refused_by_name(hours: int, level: float, said: str) -> None:
    with pytest.raises(BadInput, match=said):
        normal([1.0], [1.0]).bound(hours, level)


@pytest.mark.parametrize(
    ("num_hours", "levels"), [(0, (0.5,)), (25, (0.5,)), (4, ()), (4, (0.9, 0.5)), (4, (0.5, 1.0)), (4, (0.5, 0.5))]
)
def test_a_scope_that_makes_no_sense_is_refused(num_hours: int, levels: tuple[float, ...]) -> None:
    with pytest.raises(BadInput):
        Scope(num_hours, levels)


def test_tidying_puts_everything_in_order() -> None:
    values = DemandDistribution(np.array([[[-5.0, 8.0], [9.0, 7.0]]]), np.array([[-1.0, 8.0]]), np.ones((1, 2)))
    maxima = DemandDistribution(np.array([[[1.0, 99.0], [2.0, 3.0]]]), np.array([[4.0, 5.0]]), np.ones((1, 2)))

    tidy = Forecast((1, 2), LEVELS, values, maxima).tidied(capacity=50.0)

    assert tidy.values.quantiles.tolist() == [[[0.0, 8.0], [9.0, 9.0]]]
    assert tidy.maxima.quantiles.tolist() == [[[1.0, 50.0], [9.0, 50.0]]]
    assert tidy.maxima.mean.tolist() == [[4.0, 8.0]]
