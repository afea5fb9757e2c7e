"""Hours as they come: order, gaps, new series, samples within an hour."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from takeup.cluster.forecast.features import WeekCalendar
from takeup.cluster.forecast.forecaster import DemandHistory, ForecastTargets
from takeup.errors import BadInput


def history_of(*rows: list[float] | None, num_hours: int = 4) -> DemandHistory:
    history = DemandHistory(num_hours)
    for hour, row in enumerate(rows):
        history.append(hour, None if row is None else np.array(row))
    return history


def test_before_its_first_hour_a_series_stood_at_its_first_value() -> None:
    history = history_of([5.0], [6.0])

    assert history.values[:, 0].tolist() == [5.0, 5.0, 5.0, 6.0]
    assert history.known[:, 0].tolist() == [False, False, True, True]


def test_a_missing_hour_repeats_the_last_and_is_unknown() -> None:
    history = history_of([5.0], None, [7.0])

    assert history.values[:, 0].tolist() == [5.0, 5.0, 5.0, 7.0]
    assert history.known[:, 0].tolist() == [False, True, False, True]


def test_a_new_series_joins_without_touching_the_others() -> None:
    history = history_of([5.0], [6.0, 40.0])

    assert history.values.T.tolist() == [[5.0, 5.0, 5.0, 6.0], [40.0] * 4]
    assert history.known[:, 1].tolist() == [False, False, False, True]


@given(st.lists(st.integers(0, 9), min_size=1, max_size=60))
def test_the_window_is_the_last_rows_however_many_came(values: list[int]) -> None:
    history = history_of(*([float(value)] for value in values), num_hours=5)

    assert history.values[:, 0].tolist() == ([values[0]] * 5 + values)[-5:]


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ([1.0, float("nan")], "series 1 in hour 3 is nan"),
        ([float("inf"), 1.0], "series 0 in hour 3 is inf"),
        ([1.0, -2.0], "series 1 in hour 3 is -2.0"),
        ([1.0], "expected one value for each of 2 series"),
        ([[1.0, 2.0]], "expected one value"),
    ],
)
def test_bad_values_are_refused_by_name(values: list[float], said: str) -> None:
    with pytest.raises(BadInput, match=said):
        history_of([1.0, 1.0]).checked(3, values)


def test_an_hour_that_is_over_is_refused() -> None:
    with pytest.raises(BadInput, match="hour 1 comes after hour 1"):
        history_of([1.0], [1.0]).checked(1, [1.0])


def test_outcomes_are_values_and_maxima_since_each_origin() -> None:
    history, targets = history_of([1.0], [9.0], [4.0], [6.0]), ForecastTargets(3)

    assert targets.leads.tolist() == [1, 2, 3, 2, 3]
    assert targets.outcomes(history).tolist() == [[6.0, 6.0, 6.0, 6.0, 9.0]]
    assert targets.origins(history).tolist() == [[4.0, 9.0, 1.0, 9.0, 1.0]]
    assert targets.changes(history).tolist() == [[8.0, 3.0, 5.0, 8.0, 8.0]]


def test_nothing_is_settled_across_an_unknown_hour() -> None:
    history, targets = history_of([1.0], None, [4.0], [6.0]), ForecastTargets(3)

    assert np.isnan(targets.outcomes(history)).tolist() == [[False, True, True, True, True]]
    assert np.isnan(targets.changes(history)).all()


def test_a_week_has_two_days_off_with_exceptions() -> None:
    calendar = WeekCalendar(first_weekday=4, holidays=frozenset({3}), working_weekends=frozenset({1}))

    assert [calendar.weekday(24 * day) for day in range(7)] == [4, 5, 6, 0, 1, 2, 3]
    assert [calendar.day_kind(24 * day + 5) for day in range(7)] == [0, 0, 1, 1, 0, 0, 0]
