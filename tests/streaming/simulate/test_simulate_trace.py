"""A cell driven by a throughput log: against the plain version, against equations, and on logs that cannot be used."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streaming.plain_cell import plain_cell
from takeup.core.seeds import Streams
from takeup.errors import BadInput
from takeup.streaming.model import Capacity, Cell, Player
from takeup.streaming.simulate.cell import log_levels, play_cell, simulate_cell, simulate_log

CELL = Cell(7.5e6, 1e6, 0.7 * 7.5 / 60, max_users=10)

samples = st.lists(
    st.tuples(st.sampled_from([0.5, 1.0, 7.3]), st.sampled_from([0.0, 1e5, 3e6, 2e7])), min_size=1, max_size=8
).filter(lambda found: any(rate > 0 for _, rate in found))


@given(samples, st.sampled_from([0.7, 2.1, 9.3]))
@settings(max_examples=30, deadline=None)
def test_a_cell_on_a_log_equals_the_plain_version(found: list[tuple[float, float]], start_s: float) -> None:
    durations_s, rates_bps = np.array(found).T

    lived = play_cell(CELL, Player(start_s), log_levels(durations_s, rates_bps), num_videos=20, seed=3).records

    mean_bps = (durations_s @ rates_bps) / durations_s.sum()
    log = [(duration_s, rate_bps / mean_bps) for duration_s, rate_bps in found]
    streams = Streams(3).child("whole cell")
    chances = (streams.stream("arrivals"), streams.stream("lengths"), streams.stream("capacity"))
    plain = plain_cell(CELL, Player(start_s), chances, 21, log)[1:]
    np.testing.assert_allclose(lived.startup_s, [one.startup_s for one in plain], atol=1e-6)
    np.testing.assert_array_equal(lived.num_stalls, [one.num_stalls for one in plain])
    np.testing.assert_allclose(lived.stall_s, [one.stall_s for one in plain], atol=1e-6)


@pytest.mark.parametrize("num_samples", [1, 5])
def test_a_log_that_never_changes_is_a_constant_capacity(num_samples: int) -> None:
    played = play_cell(CELL, Player(3.0), log_levels(np.ones(num_samples), np.full(num_samples, 123.0)), num_videos=500)

    constant = play_cell(CELL, Player(3.0), num_videos=500)
    np.testing.assert_allclose(played.records.startup_s, constant.records.startup_s, atol=1e-6)
    np.testing.assert_array_equal(played.records.num_stalls, constant.records.num_stalls)


def test_only_the_shape_of_a_log_matters() -> None:
    durations_s, rates_bps = np.ones(4), np.array([1.0, 8.0, 0.0, 3.0])

    small, large = (
        simulate_log(CELL, Player(3.0), durations_s, scale * rates_bps, num_videos=500) for scale in (1.0, 2.0**20)
    )

    assert small == large


def test_changes_that_are_much_faster_than_a_buffer_average_out() -> None:
    durations_s, rates_bps = np.full(2, 0.01), np.array([0.0, 2.0])

    fast = simulate_log(CELL, Player(5.0), durations_s, rates_bps, num_videos=50_000)

    constant = simulate_cell(CELL, Player(5.0), num_videos=50_000, seed=1)
    assert {name: score for name, score in fast.z_scores(constant).items() if abs(score) > 3.5} == {}


def test_changes_that_are_slow_make_stalls_frequent() -> None:
    durations_s, rates_bps = np.full(2, 60.0), np.array([0.2, 1.8])

    slow = simulate_log(CELL, Player(5.0), durations_s, rates_bps, num_videos=20_000)

    constant = simulate_cell(CELL, Player(5.0), num_videos=20_000)
    assert slow.stall_probability.value > 5 * constant.stall_probability.value


def test_a_log_of_a_markov_chain_is_that_chain() -> None:
    generator = np.array([[-0.05, 0.05], [0.1, -0.1]])
    levels = np.array([1.2, 0.6])
    stays_s = np.random.default_rng(1).exponential(1, (20_000, 2)) / [0.05, 0.1]

    logged = simulate_log(CELL, Player(4.0), stays_s.ravel(), np.tile(levels, 20_000), num_videos=60_000)

    chained = replace(CELL, capacity=Capacity(levels, generator))
    expected = simulate_cell(chained, Player(4.0), num_videos=100_000, seed=1)
    assert {name: score for name, score in logged.z_scores(expected).items() if abs(score) > 3.5} == {}


def test_a_wait_through_an_outage_lasts_until_its_end() -> None:
    rare = replace(CELL, arrivals_per_s=1e-4, max_users=1)

    lived = play_cell(
        rare, Player(1.0), log_levels(np.array([50.0, 50.0]), np.array([0.0, 1.0])), num_videos=2000
    ).records

    assert 48 < lived.startup_s.max() <= 50 + 1 / 15 + 1e-6
    assert np.mean(lived.startup_s > 1) == pytest.approx(0.5, abs=0.05)


@pytest.mark.parametrize(
    ("durations_s", "rates_bps", "problem"),
    [
        ([], [], "at least one of each"),
        ([1.0, 1.0], [1.0], "one duration for every rate"),
        ([[1.0]], [[1.0]], "one duration for every rate"),
        ([1.0, 0.0], [1.0, 1.0], "finite time above zero"),
        ([1.0, math.nan], [1.0, 1.0], "finite time above zero"),
        ([1.0, math.inf], [1.0, 1.0], "finite time above zero"),
        ([1.0, 1.0], [1.0, -1.0], "missing or negative"),
        ([1.0, 1.0], [1.0, math.nan], "missing or negative"),
        ([1.0, 1.0], [1.0, math.inf], "missing or negative"),
        ([1.0, 1.0], [0.0, 0.0], "never delivers anything"),
    ],
)
def test_a_log_that_cannot_be_replayed_is_refused(
    durations_s: list[float], rates_bps: list[float], problem: str
) -> None:
    with pytest.raises(BadInput, match=problem):
        simulate_log(CELL, Player(3.0), np.array(durations_s), np.array(rates_bps), num_videos=10)


def test_a_cell_cannot_change_by_itself_and_by_a_log() -> None:
    changing = replace(CELL, capacity=Capacity(np.ones(1), np.zeros((1, 1))))

    with pytest.raises(BadInput, match="capacity of the cell already changes"):
        simulate_log(changing, Player(3.0), np.ones(3), np.ones(3), num_videos=10)


def test_a_log_needs_videos_like_any_run() -> None:
    with pytest.raises(BadInput, match="at least 2"):
        simulate_log(CELL, Player(3.0), np.ones(3), np.ones(3), num_videos=0)
