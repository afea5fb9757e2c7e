"""Statistics: right where there is an answer, a clear refusal where there is none."""

from __future__ import annotations

import statistics
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from takeup.core.stats import (
    Interval,
    bootstrap_interval,
    percentile,
    time_weighted_mean,
)
from takeup.errors import BadInput

NAN, INF = float("nan"), float("inf")
numbers = st.floats(-1e6, 1e6)


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


@given(st.lists(numbers, min_size=1))
def test_percentiles_reach_from_the_least_to_the_most(values: list[float]) -> None:
    assert (percentile(values, 0), percentile(values, 100)) == (min(values), max(values))


@pytest.mark.parametrize("percent", [-1, 100.5, NAN])
def test_a_percentile_outside_the_scale_is_refused(percent: float) -> None:
    with pytest.raises(BadInput, match="expected 0 to 100"):
        percentile([1.0], percent)


def test_a_time_weighted_mean_weighs_each_value_by_how_long_it_held() -> None:
    # 10 for two seconds, 40 for one, 0 for one
    assert time_weighted_mean([1, 3, 4], [10, 40, 0], until_s=5) == 15.0


def test_changes_at_the_same_time_leave_only_the_last() -> None:
    assert time_weighted_mean([0, 0, 1], [99, 2, 4], until_s=2) == 3.0


def test_changes_after_the_end_do_not_count() -> None:
    assert time_weighted_mean([0, 1, 7], [2, 4, 1000], until_s=2) == 3.0


@given(st.lists(st.tuples(st.integers(0, 9), numbers), min_size=1, max_size=10), st.integers(1, 5))
def test_a_time_weighted_mean_agrees_with_looking_every_second(changes: list[tuple[int, float]], extra_s: int) -> None:
    changes = sorted(changes, key=lambda change: change[0])
    until_s = changes[-1][0] + extra_s
    seen = [[v for t, v in changes if t <= second][-1] for second in range(changes[0][0], until_s)]
    times_s, values = zip(*changes, strict=True)

    assert time_weighted_mean(times_s, values, until_s) == pytest.approx(statistics.fmean(seen), abs=1e-6)


@pytest.mark.parametrize(
    ("times_s", "values", "until_s", "expected"),
    [
        ([0, 1], [1], 2, "found 2 times and 1 values"),
        ([1, 0], [1, 1], 2, "times go backwards"),
        ([3], [1], 3, "no time to average between 3.0 s and 3 s"),
        ([3], [1], 2, "no time to average"),
        ([3], [1], NAN, "no time to average"),
        ([], [], 2, "times: found an array of shape"),
        ([0, 1], [1, NAN], 2, "values: number 2 of 2 is nan"),
    ],
)
def test_a_time_weighted_mean_without_meaning_is_refused(
    times_s: list[float], values: list[float], until_s: float, expected: str
) -> None:
    with pytest.raises(BadInput, match=expected):
        time_weighted_mean(times_s, values, until_s)


def test_a_time_weighted_mean_until_the_end_of_time_is_refused() -> None:
    with pytest.raises(BadInput, match="inf"):
        time_weighted_mean([0], [1], INF)


def test_a_bootstrap_interval_of_the_mean_is_near_the_one_of_the_normal_law() -> None:
    values = rng(1).normal(10, 2, size=400)
    found = bootstrap_interval(values, rng=rng())
    half_width = 1.96 * values.std(ddof=1) / 20

    assert found.low == pytest.approx(values.mean() - half_width, abs=0.03)
    assert found.high == pytest.approx(values.mean() + half_width, abs=0.03)
    assert found.level == 0.95


def test_a_bootstrap_interval_covers_the_truth_about_as_often_as_it_says() -> None:
    covered = 0
    for seed in range(200):
        found = bootstrap_interval(rng(seed).normal(size=40), rng=rng(seed), level=0.9, num_resamples=400)
        covered += found.low <= 0 <= found.high

    assert 0.82 < covered / 200 < 0.96


def test_the_same_generator_gives_the_same_interval() -> None:
    values = [1.0, 5.0, 2.0, 8.0]

    assert bootstrap_interval(values, rng=rng(4)) == bootstrap_interval(values, rng=rng(4))


def test_equal_values_leave_no_doubt() -> None:
    assert bootstrap_interval([2.0, 2.0, 2.0], rng=rng()) == Interval(2.0, 2.0, 0.95)


@pytest.mark.parametrize("statistic", [np.median, np.max, lambda sample: sorted(sample)[0]])
def test_any_statistic_can_be_bootstrapped(statistic: Callable[..., float]) -> None:
    found = bootstrap_interval([1.0, 2.0, 3.0, 4.0, 5.0], rng=rng(), statistic=statistic)

    assert 1 <= found.low < found.high <= 5


def test_a_bootstrap_works_in_batches_that_do_not_change_the_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    values = rng(2).random(50)
    at_once = bootstrap_interval(values, rng=rng(3))
    monkeypatch.setattr("takeup.core.stats.MOST_NUMBERS_AT_ONCE", 10)

    assert bootstrap_interval(values, rng=rng(3)) == at_once


@pytest.mark.parametrize(
    ("values", "level", "expected"),
    [
        ([], 0.95, r"shape \(0,\), expected a list of at least 2"),
        ([1.0], 0.95, "at least 2"),
        ([[1.0, 2.0]], 0.95, r"shape \(1, 2\)"),
        ([1.0, NAN], 0.95, "number 2 of 2 is nan"),
        ([INF, 1.0], 0.95, "number 1 of 2 is inf"),
        ([1.0, 2.0], 95, "a confidence level of 95 does not exist"),
        ([1.0, 2.0], 0, "a confidence level of 0 does not exist"),
    ],
)
def test_a_bootstrap_of_what_has_no_answer_is_refused(values: list[float], level: float, expected: str) -> None:
    with pytest.raises(BadInput, match=expected):
        bootstrap_interval(values, rng=rng(), level=level)


def test_a_statistic_without_an_answer_is_refused_without_a_warning() -> None:
    with pytest.raises(BadInput, match="not a finite number for some resamples"):
        bootstrap_interval([1.0, 2.0], rng=rng(), statistic=lambda sample: NAN)
