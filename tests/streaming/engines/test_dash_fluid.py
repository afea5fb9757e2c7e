"""The ideal link: hand-computed shares, and a fine-grained walk through time as an oracle."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.support.ideal_link import ideal_arrivals_s
from support.dash.engine import Visit


def through_at(visits: list[Visit], speed: float) -> list[float]:
    """When each visit has all of its content, since its request."""
    return [float(times_s[-1]) for times_s, _ in ideal_arrivals_s(visits, speed, step_s=0.5)]


def test_one_video_alone_gets_the_whole_speed() -> None:
    ((times_s, contents_s),) = ideal_arrivals_s([(3.0, 4.0)], speed=2.0, step_s=1.0)

    assert contents_s.tolist() == [1.0, 2.0, 3.0, 4.0]
    assert times_s.tolist() == [0.5, 1.0, 1.5, 2.0]


def test_two_videos_share() -> None:
    # Alone for 1 s (2 of 4 done), then half each: 2 more take 2 s; the other has 2 by then, and 2 alone take 1 s.
    assert through_at([(0.0, 4.0), (1.0, 4.0)], speed=2.0) == pytest.approx([3.0, 3.0])


def test_the_link_rests_between_videos() -> None:
    assert through_at([(0.0, 2.0), (100.0, 2.0)], speed=2.0) == pytest.approx([1.0, 1.0])


def test_three_at_once_with_different_lengths() -> None:
    # At speed 3 all get 1: the first is through at 1, then 1.5 each: at 1 + 1/1.5, then 3 for the last.
    found = through_at([(0.0, 1.0), (0.0, 2.0), (0.0, 5.0)], speed=3.0)

    assert found == pytest.approx([1.0, 1.0 + 1 / 1.5, 1.0 + 1 / 1.5 + 1.0])


@settings(max_examples=30)
@given(st.lists(st.tuples(st.integers(0, 6), st.integers(1, 3)), min_size=1, max_size=6), st.integers(1, 4))
def test_it_agrees_with_a_walk_through_time(visits: list[tuple[int, int]], speed: int) -> None:
    ordered = [(float(requested), float(length)) for requested, length in sorted(visits)]
    step_s = 0.005
    left = np.array([length for _, length in ordered])
    through = np.zeros(len(ordered))
    now_s = 0.0
    while (left > 0).any():
        active = (left > 0) & (np.array([requested for requested, _ in ordered]) <= now_s + 1e-9)
        left[active] -= speed * step_s / max(1, active.sum())
        now_s += step_s
        through[active] = now_s

    expected = through - [requested for requested, _ in ordered]
    assert through_at(ordered, float(speed)) == pytest.approx(expected.tolist(), abs=0.1)


@given(st.lists(st.tuples(st.floats(0, 50), st.floats(0.01, 30)), min_size=1, max_size=12))
def test_arrivals_rise_and_end_with_the_length(visits: list[Visit]) -> None:
    ordered = sorted(visits)

    for (_, length_s), (times_s, contents_s) in zip(ordered, ideal_arrivals_s(ordered, 3.0, 0.25), strict=True):
        assert contents_s[-1] == length_s
        assert (np.diff(times_s) >= -1e-9).all()
        assert times_s[-1] >= length_s / 3.0 - 1e-9
