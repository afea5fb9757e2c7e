"""Iterations found in logs of calls: with sporadic calls, many micro-batches, and nothing to find."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from takeup.core.arrays import Ints
from takeup.papers.falcon.published import period_by_autocorrelation
from takeup.training.stragglers.locate.matching import (
    IterationMarker,
    find_marker,
)

STEP = [1, 2, 3, 4]  # three buckets of gradients and the loss
LOGGING, SAVING = 8, 9


def log_of(step: list[int], num_iterations: int, *, log_every: int = 0, save_every: int = 0) -> Ints:
    """The calls of a loop that also logs and saves now and then."""
    calls: list[int] = []
    for iteration in range(1, num_iterations + 1):
        calls += step
        calls += [LOGGING] if log_every and iteration % log_every == 0 else []
        calls += [SAVING, SAVING] if save_every and iteration % save_every == 0 else []
    return np.array(calls)


def clock_of(tokens: Ints) -> IterationMarker:
    found = find_marker(tokens)
    assert found is not None
    return found


@given(st.integers(10, 200), st.integers(5, 30), st.integers(15, 50))
def test_iterations_are_counted_whatever_comes_in_between(num: int, log_every: int, save_every: int) -> None:
    clock = clock_of(log_of(STEP, num, log_every=log_every, save_every=save_every))

    assert clock.num_iterations == num
    assert clock.token in STEP


def test_calls_repeated_within_an_iteration_are_multiples_not_iterations() -> None:
    buckets_of_equal_size = [1, 2, 2, 2, 3, 4, 5]
    clock = clock_of(log_of(buckets_of_equal_size, 30))

    assert clock.num_iterations == 30
    assert clock.token != 2


def test_calls_that_come_now_and_then_may_be_many() -> None:
    short_step = [1, 2]
    tokens = np.concatenate([log_of(short_step, 85, log_every=10, save_every=28), [5, 6, 7]])
    clock = clock_of(tokens)

    assert clock.num_iterations == 85
    assert clock.token in short_step


def test_layers_are_not_taken_for_iterations() -> None:
    assert clock_of(log_of([1] * 6 + [2, 3], 40)).num_iterations == 40


def test_a_call_that_comes_twice_in_every_iteration_is_not_taken_for_one() -> None:
    clock = clock_of(log_of([1, 2, 1, 3, 4, 1, 1, 5], 68, log_every=10, save_every=12))

    assert clock.num_iterations == 68
    assert clock.token in {2, 3, 4, 5}


def test_times_are_from_one_call_of_the_clock_to_the_next() -> None:
    tokens = log_of(STEP, 20, log_every=5)
    durations_s = np.random.default_rng(0).uniform(0.1, 0.2, 20)
    starts_s = np.concatenate([[0.0], np.cumsum(durations_s)])
    iteration = np.cumsum(tokens == STEP[0]) - 1
    times_s = starts_s[iteration] + 0.01 * np.where(tokens <= len(STEP), tokens, 6)

    assert np.diff(times_s[tokens == clock_of(tokens).token]) == pytest.approx(durations_s[:19])


def test_a_log_cut_in_the_middle_of_an_iteration_is_read_all_the_same() -> None:
    assert clock_of(log_of(STEP, 50)[2:-1]).num_iterations in (49, 50)


def test_a_steady_call_is_preferred_to_one_that_wanders() -> None:
    rng = np.random.default_rng(1)
    steps = [[1, *rng.permutation([2, 3, 4]).tolist()] for _ in range(40)]

    assert clock_of(np.array([call for step in steps for call in step])).token == 1


@pytest.mark.parametrize("tokens", [[], [1], [1, 2, 3, 4], list(range(100))], ids=len)
def test_nothing_is_found_where_nothing_repeats(tokens: list[int]) -> None:
    assert find_marker(np.array(tokens, np.int64)) is None


# As published ---------------------------------------------------------------------------------------------------------


def test_the_published_way_finds_a_strict_period_after_twenty_iterations() -> None:
    assert period_by_autocorrelation(log_of(STEP, 25)) == len(STEP)
    assert period_by_autocorrelation(log_of(STEP, 15)) is None


def test_the_published_way_is_lost_when_a_call_comes_only_now_and_then() -> None:
    assert period_by_autocorrelation(log_of(STEP, 120, log_every=10)) is None
    assert period_by_autocorrelation(log_of([1], 120)) is None
    assert period_by_autocorrelation(np.zeros(0, np.int64)) is None
