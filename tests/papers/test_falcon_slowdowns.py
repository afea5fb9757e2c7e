"""Drawn and recorded jobs that become slow: their truth, their frequencies, and what is not a slowdown."""

from __future__ import annotations

import numpy as np
import pytest

from takeup.papers.falcon.slowdowns import SHORTEST, SITES, IterationStream, draw_stream, truth_of
from takeup.training.stragglers.remedy.restart import LINK_MINUTES

ONE_NODE, FOUR_NODES, AT_SCALE = SITES


def drawn(number: int, hit: bool | None = True) -> IterationStream:
    return draw_stream(np.random.default_rng(number), SITES[number % 3], is_hit=hit)


def test_the_truth_is_where_the_level_moves_by_a_tenth() -> None:
    levels = np.repeat([1.0, 1.2, 1.25, 1.0], 50)

    assert truth_of(levels) == [(50, True), (150, False)]


def test_small_moves_add_up_to_one() -> None:
    assert truth_of(np.repeat([1.0, 1.06, 1.13, 1.19, 1.0], 50)) == [(100, True), (200, False)]


@pytest.mark.parametrize("number", range(30))
def test_changes_are_apart_and_go_up_first(number: int) -> None:
    stream = drawn(number)
    places = [0, *(place for place, _ in stream.truth)]

    assert stream.truth[0][1]
    assert min(np.diff(places)) >= SHORTEST
    assert places[1] > 100
    assert len(stream.iterations_s) == len(stream.levels) == len(stream.work) == len(stream.sorts)
    assert (stream.iterations_s > 0).all()


def test_times_follow_the_levels() -> None:
    for number in range(12):
        stream = drawn(number)
        place, _ = stream.truth[0]
        end = stream.truth[1][0] if len(stream.truth) > 1 else len(stream.levels)
        ratio = np.median(stream.iterations_s[place:end]) / np.median(stream.iterations_s[50:place])

        assert ratio == pytest.approx(np.median(stream.levels[place:end]), rel=0.06)


def test_a_healthy_job_has_no_truth_but_all_the_nuisance() -> None:
    stream = drawn(3, hit=False)

    assert stream.truth == []
    assert set(stream.sorts.tolist()) == {0, 1, 2}
    assert stream.iterations_s[0] > 1.3 * np.median(stream.iterations_s)
    assert stream.iterations_s[stream.sorts == 1].min() > 1.3 * np.median(stream.iterations_s)


def test_jobs_are_hit_as_often_as_in_the_study() -> None:
    random = np.random.default_rng(0)
    share = np.mean([bool(draw_stream(random, FOUR_NODES, 400).truth) for _ in range(300)])

    assert share == pytest.approx(43 / 107, abs=0.08)
    assert (ONE_NODE.num_compute, FOUR_NODES.num_links, AT_SCALE.num_links + AT_SCALE.num_both) == (6, 42, 16)


def test_half_of_the_slowdowns_of_links_last_longer_than_twenty_minutes() -> None:
    shares, minutes = np.array(LINK_MINUTES).T

    assert np.interp(20.0, minutes, shares) == pytest.approx(0.52)


def test_the_same_seed_draws_the_same_job() -> None:
    assert (drawn(5).iterations_s == drawn(5).iterations_s).all()
