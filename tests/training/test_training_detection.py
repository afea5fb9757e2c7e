"""Scores of detectors: counted by hand on small streams; ours beside the published ones on drawn jobs."""

from __future__ import annotations

import numpy as np
import pytest

from takeup.papers.falcon.detection import (
    Alarm,
    DetectionScore,
    OnlineChangePoints,
    SlidingWindow,
    draw_streams,
    score_of,
)
from takeup.papers.falcon.slowdowns import IterationStream
from takeup.training.stragglers.detect.change_points import ChangePointDetector


def stream(*levels: tuple[int, float]) -> IterationStream:
    values = np.concatenate([np.full(number, level) for number, level in levels])
    return IterationStream("by hand", values, values, np.zeros(len(values), np.int64), np.ones(len(values)))


SLOW, HEALTHY = stream((100, 1.0), (50, 1.5), (50, 1.0)), stream((200, 1.0))


def scored(*alarms: list[Alarm]) -> DetectionScore:
    """One list for the slow job, one for the healthy one."""
    given = dict(zip((id(SLOW), id(HEALTHY)), alarms, strict=True))
    return score_of(lambda each: given[id(each)], [SLOW, HEALTHY])


def test_right_alarms_score_full() -> None:
    score = scored([(104, True), (153, False)], [])

    assert (score.accuracy, score.precision, score.recall, score.f1) == (1.0, 1.0, 1.0, 1.0)
    assert score.delay == 3.5
    assert score.false_alarms == 0


def test_an_alarm_for_a_healthy_job_counts_against_it() -> None:
    score = scored([(104, True), (153, False)], [(120, True)])

    assert (score.accuracy, score.published_fpr, score.published_fnr) == (0.5, 0.5, 0.0)
    assert score.precision == pytest.approx(2 / 3)
    assert score.false_alarms == pytest.approx(1e4 / 400)


def test_a_slow_job_without_alarm_is_missed() -> None:
    score = scored([], [])

    assert (score.accuracy, score.published_fnr, score.recall, score.delay) == (0.5, 0.5, 0.0, None)


def test_too_late_or_the_wrong_direction_is_wrong() -> None:
    assert scored([(140, True)], []).num_false == 1
    assert scored([(104, True), (110, False)], []).num_false == 1


def test_a_second_alarm_for_the_same_change_is_wrong() -> None:
    assert scored([(104, True), (106, True)], []).num_false == 1


def test_warm_up_counts_for_nobody() -> None:
    assert scored([(104, True), (150, False)], [(20, True), (90, False)]).num_false == 0


def test_sets_with_other_names_are_other_jobs() -> None:
    (one,), (other,), (again,) = (draw_streams(part, 1) for part in ("a", "b", "a"))

    assert not np.array_equal(one.iterations_s, other.iterations_s)
    assert np.array_equal(one.iterations_s, again.iterations_s)


# Detectors ------------------------------------------------------------------------------------------------------------


def ours(each: IterationStream) -> list[Alarm]:
    return [(change.declared, change.is_onset) for change in ChangePointDetector().see(each.iterations_s)]


def test_ours_is_better_than_the_published_ones_on_drawn_jobs() -> None:
    streams = [*draw_streams("tests", 6), *draw_streams("tests hit", 8, hit=True)]
    score = score_of(ours, streams)
    online = score_of(lambda each: OnlineChangePoints(num_after=8).alarms(each.iterations_s), streams)
    window = score_of(lambda each: SlidingWindow().alarms(each.iterations_s), streams)

    assert score.precision >= 0.98
    assert score.recall >= 0.98
    assert score.accuracy == 1.0
    assert score.delay is not None
    assert score.delay <= 5
    assert score.f1 > max(online.f1, window.f1)


def test_the_published_rule_never_fires_as_printed() -> None:
    assert OnlineChangePoints(is_literal=True).alarms(SLOW.iterations_s * np.linspace(1, 1.001, 200)) == []


def test_the_published_rule_finds_a_clear_change_in_hindsight() -> None:
    random = np.random.default_rng(0)
    times_s = SLOW.iterations_s * np.exp(0.02 * random.standard_normal(200))
    found = OnlineChangePoints().alarms(times_s)

    assert [slower for _, slower in found] == [True, False]
    assert 100 <= found[0][0] <= 106


def test_what_is_not_verified_is_dropped() -> None:
    random = np.random.default_rng(1)
    times_s = stream((100, 1.0), (100, 1.07)).iterations_s * np.exp(0.005 * random.standard_normal(200))

    assert OnlineChangePoints(spread=0.005, verify=False).alarms(times_s) != []
    assert OnlineChangePoints(spread=0.005).alarms(times_s) == []


def test_the_window_compares_medians() -> None:
    times_s = SLOW.iterations_s.copy()
    times_s[50] = 10.0

    assert SlidingWindow().alarms(times_s) == [(102, True), (152, False)]
