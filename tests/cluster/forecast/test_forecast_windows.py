"""Sorted windows of residuals against numpy's quantiles over the stored values."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from takeup.cluster.forecast.calibration import ResidualWindow
from takeup.core.arrays import Floats

LEVELS = np.array([0.1, 0.5, 0.9, 0.99])
small_residuals = st.one_of(st.integers(-3, 3).map(float), st.floats(-1e6, 1e6), st.just(float("nan")))


def filled(rows: list[float], num_slots: int) -> ResidualWindow:
    window = ResidualWindow(num_targets=1, num_slots=num_slots)
    for row in rows:
        window.add(np.array([[row]]))
    return window


def everywhere(levels: Floats) -> Floats:
    return np.ascontiguousarray(levels[None, None, :])


def oracle(rows: list[float], num_slots: int, weights: Floats | None = None) -> Floats:
    """The plain version: keep the last rows, drop the missing ones, ask numpy."""
    kept = np.array(rows[-num_slots:])
    known = ~np.isnan(kept)
    by_age = None if weights is None else weights[-len(kept) :][known]
    return np.asarray(np.quantile(kept[known], LEVELS, method="inverted_cdf", weights=by_age))


@settings(max_examples=60, deadline=None)
@given(st.lists(small_residuals, min_size=1, max_size=60))
def test_plain_quantiles_are_those_of_the_stored_residuals(rows: list[float]) -> None:
    window = filled(rows, num_slots=20)

    if np.isfinite(rows[-20:]).any():
        np.testing.assert_allclose(window.plain(everywhere(LEVELS))[0, 0], oracle(rows, 20))
    else:
        assert not window.plain(everywhere(LEVELS)).any()


@settings(max_examples=60, deadline=None)
@given(st.lists(small_residuals, min_size=1, max_size=60), st.integers(0, 1000))
def test_weighted_quantiles_are_those_of_the_stored_residuals(rows: list[float], seed: int) -> None:
    window, by_age = filled(rows, num_slots=20), np.random.default_rng(seed).integers(1, 9, 20) / 8.0
    slots = (window.next_slot - 20 + np.arange(20)) % 20  # from the oldest to the latest
    weights = np.empty((1, 20))
    weights[0, slots] = by_age

    found = window.weighted(weights, everywhere(LEVELS))

    if np.isfinite(rows[-20:]).any():
        np.testing.assert_allclose(found.quantiles[0, 0], oracle(rows, 20, by_age))
    else:
        assert not found.quantiles.any()


def test_moments_are_weighted_and_skip_empty_slots() -> None:
    window = filled([100.0, 1.0, float("nan"), 3.0, 7.0], num_slots=4)
    weights = np.ones((1, 4))
    weights[0, 3] = 3.0  # the slot of 3.0

    found = window.weighted(weights, everywhere(LEVELS))

    assert found.mean[0, 0] == pytest.approx((1 + 9 + 7) / 5)
    assert found.variance[0, 0] == pytest.approx((1 + 27 + 49) / 5 - 3.4**2)


def test_an_odd_number_of_slots_is_made_even() -> None:
    assert ResidualWindow(num_targets=1, num_slots=5).num_slots == 6


def test_the_order_lists_exactly_the_filled_slots() -> None:
    rng = np.random.default_rng(0)
    window = ResidualWindow(num_targets=2, num_slots=10)
    for _ in range(57):
        window.add(np.where(rng.random((3, 2)) < 0.2, np.nan, rng.integers(-2, 3, (3, 2))))

        for series in range(3):
            for target in range(2):
                listed = window.order[series, target, : window.counts[series, target]]
                assert sorted(listed) == list(np.flatnonzero(~np.isnan(window.values[series, target])))
                assert (np.diff(window.values[series, target, listed]) >= 0).all()


def test_series_that_come_later_start_with_an_empty_window() -> None:
    window = filled([1.0, 2.0], num_slots=4)

    window.add(np.array([[3.0], [9.0]]))

    assert window.counts.tolist() == [[3], [1]]
    assert window.plain(np.full((2, 1, 1), 0.5))[:, 0, 0].tolist() == [2.0, 9.0]
