"""Distributions: selection, limits, and sums over the organisations of a pool."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import norm

from takeup.cluster.forecast.distribution import DemandDistribution, Forecast, Scope, sum_over_pools
from takeup.errors import BadInput

LEVELS = (0.5, 0.9)


def normal(means: list[float], stds: list[float]) -> Forecast:
    """One hour ahead."""
    mean, std = np.array(means)[:, None], np.array(stds)[:, None]
    spread = DemandDistribution(mean[:, :, None] + std[:, :, None] * norm.ppf(LEVELS), mean, std)
    return Forecast((1,), LEVELS, spread, spread)


def test_moments_of_independent_normals_add_up() -> None:
    forecast = sum_over_pools(normal([10.0, 20.0, 5.0], [3.0, 4.0, 1.0]), [0, 0, 1])

    assert forecast.values.mean[:, 0].tolist() == [30.0, 5.0]
    assert forecast.values.std[:, 0].tolist() == [5.0, 1.0]
    np.testing.assert_allclose(forecast.values.quantiles[0, 0], norm(30.0, 5.0).ppf(LEVELS))


def test_the_sum_of_bounds_is_wider_than_the_bound_of_the_sum() -> None:
    forecast = normal([10.0, 20.0], [3.0, 4.0])
    careful, plain = (sum_over_pools(forecast, [0, 0], rule).bound(1, 0.9)[0] for rule in ("quantiles", "moments"))

    assert careful == pytest.approx(30.0 + 7.0 * norm.ppf(0.9))
    assert careful > plain


def test_a_pool_of_one_series_is_that_series() -> None:
    forecast = normal([10.0, 20.0], [3.0, 4.0])

    for rule in ("moments", "quantiles"):
        np.testing.assert_allclose(sum_over_pools(forecast, [1, 0], rule).bound(1, 0.9), forecast.bound(1, 0.9)[::-1])


def test_a_pool_stays_within_its_capacity() -> None:
    forecast = sum_over_pools(normal([10.0, 20.0], [3.0, 4.0]), [0, 0], capacity=31.0)

    assert forecast.maxima.quantiles.max() == 31.0


@pytest.mark.parametrize("pools", [[0], [0, -1]])
def test_pools_that_do_not_match_the_series_are_refused(pools: list[int]) -> None:
    with pytest.raises(BadInput, match="for each series"):
        sum_over_pools(normal([10.0, 20.0], [3.0, 4.0]), pools)


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
