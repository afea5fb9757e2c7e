"""The engine: its plan, its refusals, and one short run of the real ring."""

from __future__ import annotations

import socket

import numpy as np
import numpy.typing as npt
import pytest
from scipy.linalg import expm

from benchmarks.support.ideal_link import on_ideal_link
from support.dash.engine import DashEngine, Downloads
from takeup.errors import BadInput
from takeup.streaming.model import Capacity, Cell, Player, Views
from takeup.streaming.playback import play

CELL = Cell(capacity_bps=2.8e6, bitrate_bps=360e3, arrivals_per_s=0.5, max_users=6, views=(Views(1.0, 12.0),))
NUM_VIDEOS = 80
pytestmark = pytest.mark.xdist_group("ring")  # one process runs it, once


def test_a_plan_opens_no_socket(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a socket was opened")

    monkeypatch.setattr(socket, "socket", refuse)
    plan = DashEngine(speedup=20).plan(CELL, NUM_VIDEOS)

    assert plan.expected_s == pytest.approx((80 / 0.5 + 12) / 20)
    assert plan.link_bps == pytest.approx(56e6)
    assert plan.segment_bytes == 45_000
    assert "80 videos in about 9 s, 20 times faster than life" in str(plan)
    assert "56.0 Mbit/s on loopback" in str(plan)


@pytest.mark.parametrize("speedup", [0.0, -1.0, float("inf"), float("nan")])
def test_a_speedup_that_makes_no_sense_is_refused(speedup: float) -> None:
    with pytest.raises(BadInput, match="give finite numbers above 0"):
        DashEngine(speedup=speedup)


@pytest.mark.parametrize("num_videos", [0, 19, 1_000_000])
def test_runs_too_short_or_too_long_are_refused(num_videos: int) -> None:
    with pytest.raises(BadInput, match="expected 20 to 100000"):
        DashEngine().plan(CELL, num_videos)


@pytest.mark.parametrize(
    "cell",
    [
        Cell(2.8e6, 360e3, 0.1, 5, opportunistic=True),
        Cell(2.8e6, 360e3, 0.1, 5, capacity=Capacity(np.ones(1), np.zeros((1, 1)))),
    ],
)
def test_cells_whose_rate_changes_are_refused(cell: Cell) -> None:
    with pytest.raises(BadInput, match="one fixed rate"):
        DashEngine().plan(cell, NUM_VIDEOS)


def test_more_users_than_sockets_are_refused() -> None:
    with pytest.raises(BadInput, match="at most 200"):
        DashEngine().plan(Cell(2.8e6, 360e3, 0.1, max_users=201), NUM_VIDEOS)


def test_a_link_too_fast_is_refused_before_anything_runs() -> None:
    with pytest.raises(BadInput, match="lower the speed-up"):
        DashEngine(speedup=1000).measure(CELL, Player(5.0), NUM_VIDEOS)


@pytest.fixture(scope="module")
def downloads() -> Downloads:
    """About nine seconds of real downloads, for all tests that look at them."""
    engine = DashEngine(speedup=20)
    return engine.download(CELL, NUM_VIDEOS, np.random.default_rng(4))


@pytest.mark.engine
def test_every_video_is_accounted_for(downloads: Downloads) -> None:
    answer = downloads.answer(Player(5.0))
    num_blocked = sum(session.blocked for session in downloads.sessions)

    assert len(downloads.sessions) == NUM_VIDEOS
    assert answer.num_videos + num_blocked == NUM_VIDEOS
    assert answer.blocked_share.value == pytest.approx(num_blocked / NUM_VIDEOS)


@pytest.mark.engine
def test_every_byte_arrives_in_order_of_time(downloads: Downloads) -> None:
    for session in downloads.sessions:
        if not session.blocked:
            assert session.num_bytes == int(np.ceil(session.length_s * CELL.bitrate_bps / 8))
            assert session.contents_s[-1] == pytest.approx(session.length_s)
            assert (np.diff(session.times_s) >= 0).all()
            assert session.times_s[0] > 0


@pytest.mark.engine
def test_no_more_than_the_admitted_number_download_at_a_time(downloads: Downloads) -> None:
    admitted = [session for session in downloads.sessions if not session.blocked]
    changes = [(session.requested_s, 1) for session in admitted]
    changes += [(session.requested_s + float(session.times_s[-1]), -1) for session in admitted]
    num_active = np.cumsum([change for _, change in sorted(changes)])

    assert num_active.max() <= CELL.max_users


@pytest.mark.engine
def test_nobody_is_served_faster_than_the_whole_link(downloads: Downloads) -> None:
    admitted = [session for session in downloads.sessions if not session.blocked]
    late_s = 0.1 * 20  # what a link that was late may make up for, in the seconds of the cell

    assert all(s.length_s <= (s.times_s[-1] + late_s) * CELL.speed for s in admitted)


@pytest.mark.engine
def test_players_see_what_an_ideal_link_would_show_them(downloads: Downloads) -> None:
    """The same arrivals on both sides, so chance plays no part; what is left is quanta and timers.

    The middle one of the viewers counts: a machine that stands still for a moment hits those who start just then.
    """
    real_s, ideal_s = startups_s(downloads), startups_s(on_ideal_link(downloads))
    later_s = float(np.median(real_s - ideal_s))

    assert -0.1 * ideal_s.mean() < later_s < 0.2 * ideal_s.mean() + 0.3


def startups_s(downloads: Downloads) -> npt.NDArray[np.float64]:
    """How long every viewer who was let in waited for the first picture."""
    admitted = [session for session in downloads.sessions if not session.blocked]
    steps = [(np.diff(s.contents_s, prepend=0.0), np.diff(s.times_s, prepend=0.0)) for s in admitted]
    return np.array([play(*step, Player(5.0)).startup_s for step in steps])


def expected_startup_s(cell: Cell, start_s: float) -> float:
    """The mean time to receive `start_s` or the whole video, from the linear equations of the chain of other users."""
    num, rate = cell.max_users, 1 / cell.mean_video_s
    fill = cell.speed / np.arange(1, num + 1)
    rates = np.diag(np.full(num - 1, cell.arrivals_per_s), 1) + np.diag(np.arange(1, num) * rate * fill[1:], -1)
    rates -= np.diag(rates.sum(axis=1) + rate * fill)
    system = np.zeros((num + 1, num + 1))
    system[:num, :num], system[:num, num] = rates / fill[:, None], 1 / fill
    found = cell.load ** np.arange(num)
    return float(found / found.sum() @ expm(system * start_s)[:num, num])


@pytest.mark.engine
def test_the_mean_startup_is_near_its_expectation(downloads: Downloads) -> None:
    found = downloads.answer(Player(5.0)).startup_s
    expected = expected_startup_s(CELL, 5.0)

    assert abs(found.value - expected) < 5 * found.error + 0.3 * expected


@pytest.mark.engine
def test_one_run_answers_for_many_players(downloads: Downloads) -> None:
    startups = [downloads.answer(Player(start_s)).startup_s.value for start_s in (1.0, 3.0, 9.0)]

    assert startups == sorted(startups)


@pytest.mark.engine
def test_measure_returns_the_answer_in_the_seconds_of_the_cell() -> None:
    quick = Cell(2.8e6, 360e3, arrivals_per_s=4.0, max_users=3, views=(Views(0.5, 1.0), Views(0.5, 2.0)))

    answer = DashEngine(speedup=4).measure(quick, Player(1.0), 24)

    assert answer.source == "dash"
    assert 0.1 < answer.startup_s.value < 5.0  # one second of video at a third of the speed takes 0.4 s
    assert answer.num_videos <= 24
