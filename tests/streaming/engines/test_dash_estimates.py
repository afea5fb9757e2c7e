"""Batch means, and the summary of sessions made by hand."""

from __future__ import annotations

import numpy as np
import pytest

from takeup.errors import BadInput
from takeup.streaming.engines.dash.engine import VideoSession, batch_means, summarise_sessions, whole_segments
from takeup.streaming.model import Estimate, Player


def session(number: int, times_s: list[float], contents_s: list[float]) -> VideoSession:
    return VideoSession(float(number), contents_s[-1], 1, np.array(times_s), np.array(contents_s))


def test_the_error_is_that_of_the_means_of_batches() -> None:
    values = [0.0] * 5 + [1.0] * 5

    assert batch_means(values) == Estimate(0.5, 0.5)


def test_at_most_twenty_batches_are_made() -> None:
    values = np.repeat(np.arange(20.0), 50)

    assert batch_means(values) == Estimate(9.5, float(np.std(np.arange(20.0), ddof=1) / 20**0.5))


def test_correlated_values_have_a_larger_error_than_independent_ones() -> None:
    rng = np.random.default_rng(3)
    independent = rng.normal(size=2000)
    correlated = np.repeat(rng.normal(size=100), 20)

    assert batch_means(correlated).error > 2 * batch_means(independent).error


def test_errors_of_independent_values_are_the_usual_ones() -> None:
    values = np.random.default_rng(5).normal(size=20_000)

    assert batch_means(values).error == pytest.approx(20_000**-0.5, rel=0.5)


def test_a_summary_counts_what_happened() -> None:
    smooth = [session(number, [2.0, 3.0], [5.0, 9.0]) for number in range(5)]
    stalled = [session(number, [4.0, 11.0], [5.0, 9.0]) for number in range(5, 10)]
    blocked = [VideoSession(float(number), 9.0) for number in range(10, 20)]

    answer = summarise_sessions([*smooth, *stalled, *blocked], Player(5.0), "by hand")

    assert answer.source == "by hand"
    assert answer.startup_s.value == 3.0
    assert answer.stall_probability.value == answer.num_stalls.value == 0.5
    assert answer.stall_s.value == 0.5 * 2.0
    assert answer.finished_early.value == 0.0
    assert answer.blocked_share.value == 0.5
    assert answer.num_videos == 10


def test_too_few_videos_make_no_summary() -> None:
    with pytest.raises(BadInput, match="only 9 of 9 videos"):
        summarise_sessions([session(number, [1.0], [1.0]) for number in range(9)], Player(1.0), "by hand")


def test_whole_segments_arrive_with_their_last_byte() -> None:
    arrivals = [(1.0, 0.4), (2.0, 1.1), (3.0, 1.9), (4.0, 3.2), (5.0, 3.5)]

    assert list(whole_segments(arrivals, 1.0)) == [(2.0, 1.0), (4.0, 3.0), (5.0, 3.5)]


def test_a_player_of_whole_segments_waits_for_them() -> None:
    sessions = [session(number, [1.0, 2.0, 3.0], [0.9, 1.8, 9.0]) for number in range(10)]

    by_byte = summarise_sessions(sessions, Player(0.5), "by hand")
    by_segment = summarise_sessions(sessions, Player(0.5), "by hand", segment_s=1.0)

    assert (by_byte.startup_s.value, by_segment.startup_s.value) == (1.0, 2.0)
