"""The viewer's screen: hand-computed arrivals, and a second by second account of the same as an oracle."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from takeup.streaming import playback
from takeup.streaming.model import Player
from takeup.streaming.playback import Playback

Arrivals = list[tuple[float, float]]


def play(arrivals: Arrivals, player: Player) -> Playback:
    """Play a video from the times of arrivals and the content in total by then."""
    times_s, contents_s = np.array(arrivals).T
    return playback.play(np.diff(contents_s, prepend=0.0), np.diff(times_s, prepend=0.0), player)


def test_playback_starts_when_the_threshold_is_reached() -> None:
    arrivals = [(1.0, 1.0), (2.0, 2.0), (3.0, 3.0), (4.0, 10.0)]

    assert play(arrivals, Player(start_s=3.0)) == Playback(3.0, 0, 0.0, finished_early=False)


def test_a_threshold_of_zero_starts_with_the_first_content() -> None:
    assert play([(0.5, 0.1), (0.55, 5.0)], Player(start_s=0.0)).startup_s == 0.5


def test_a_buffer_that_runs_empty_is_a_stall_until_it_is_refilled() -> None:
    # Starts at 1 with 2 s, is empty at 3; one second comes at 4, the second at 6: a stall of three seconds.
    arrivals = [(1.0, 2.0), (4.0, 3.0), (6.0, 4.0), (7.0, 9.0)]

    assert play(arrivals, Player(start_s=2.0)) == Playback(1.0, 1, 3.0, finished_early=False)


def test_the_resume_threshold_may_differ_from_the_start() -> None:
    arrivals = [(1.0, 2.0), (4.0, 3.0), (6.0, 9.0)]

    assert play(arrivals, Player(start_s=2.0, resume_s=1.0)) == Playback(1.0, 2, 1.0 + 1.0, finished_early=False)


def test_content_that_comes_at_the_last_moment_prevents_the_stall() -> None:
    assert play([(1.0, 2.0), (3.0, 4.0)], Player(start_s=2.0)).num_stalls == 0


def test_a_video_shorter_than_the_threshold_starts_when_it_is_there() -> None:
    assert play([(1.0, 0.5), (2.0, 0.8)], Player(start_s=5.0)) == Playback(2.0, 0, 0.0, finished_early=True)


def test_a_stall_ends_with_the_download_even_below_the_threshold() -> None:
    arrivals = [(1.0, 2.0), (5.0, 2.5)]

    assert play(arrivals, Player(start_s=2.0)) == Playback(1.0, 1, 2.0, finished_early=False)


def test_what_plays_after_the_download_is_no_stall() -> None:
    assert play([(1.0, 60.0)], Player(start_s=5.0)) == Playback(1.0, 0, 0.0, finished_early=False)


def test_sums_that_miss_the_threshold_by_rounding_reach_it() -> None:
    arrivals = [(float(number), sum([0.1] * number)) for number in range(1, 40)]

    assert play(arrivals, Player(start_s=0.8)).startup_s == 8.0


def play_second_by_second(arrivals: Arrivals, player: Player) -> Playback:
    """The same for whole seconds, by walking through every one of them."""
    content = dict(arrivals)
    end = int(arrivals[-1][0])
    received = played = startup = stall = num_stalls = 0
    started = playing = False
    for now in range(end + 1):
        received = int(content.get(now, received))
        if playing and received == played and now < end:
            playing, num_stalls = False, num_stalls + 1
        threshold = player.again_s if started else player.start_s
        if not playing and now in content and received - played >= threshold:
            started = playing = True
        if now < end:
            played += playing
            startup += not started
            stall += started and not playing
    return Playback(startup, num_stalls, stall, finished_early=not started)


@st.composite
def whole_second_arrivals(draw: st.DrawFn) -> Arrivals:
    gaps = draw(st.lists(st.tuples(st.integers(1, 6), st.integers(1, 6)), min_size=1, max_size=25))
    time = content = 0
    arrivals: Arrivals = []
    for wait, more in gaps:
        time, content = time + wait, content + more
        arrivals.append((float(time), float(content)))
    return arrivals


@given(whole_second_arrivals(), st.integers(1, 12), st.integers(1, 12))
def test_it_agrees_with_a_walk_through_every_second(arrivals: Arrivals, start_s: int, resume_s: int) -> None:
    player = Player(start_s, resume_s)

    assert play(arrivals, player) == play_second_by_second(arrivals, player)


@given(whole_second_arrivals(), st.floats(0, 20), st.floats(0, 20))
def test_waiting_never_takes_longer_than_the_download(arrivals: Arrivals, start_s: float, resume_s: float) -> None:
    seen = play(arrivals, Player(start_s, resume_s))

    assert 0 <= seen.startup_s + seen.stall_s <= arrivals[-1][0] + 1e-9
    assert not (seen.finished_early and seen.num_stalls)


@pytest.mark.parametrize("start_s", [1.0, 2.0, 4.0, 8.0])
def test_a_higher_threshold_starts_no_earlier(start_s: float) -> None:
    arrivals = [(0.7 * number, float(number)) for number in range(1, 30)]

    assert play(arrivals, Player(start_s)).startup_s == pytest.approx(0.7 * start_s)
