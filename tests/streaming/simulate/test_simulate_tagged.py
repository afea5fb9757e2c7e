"""Tagged videos against the plain version, against known numbers, and on what cannot be played."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streaming.plain_cell import Watched, plain_tagged
from takeup.core.seeds import Streams
from takeup.errors import BadInput, UnknownName
from takeup.streaming.chains import chain_of
from takeup.streaming.model import Cell, Chain, Estimate, Player, QoeMetrics, Views
from takeup.streaming.simulate import simulate
from takeup.streaming.simulate.tagged import chain_of_any_view, play_tagged, simulate_tagged
from takeup.streaming.simulate.video_records import VideoRecords


def reference_cell(arrivals_per_s: float) -> Cell:
    """A cell of 2.8 Mbit/s for videos of 360 kbit/s and one minute."""
    return Cell(2.8e6, 360e3, arrivals_per_s, max_users=10)


def one_state(fill: float, end: float) -> Chain:
    return Chain(np.zeros((1, 1)), np.array([end]), np.array([fill]), np.ones(1))


def assert_equal(lived: VideoRecords, plain: list[Watched]) -> None:
    np.testing.assert_allclose(lived.startup_s, [one.startup_s for one in plain], atol=1e-7)
    np.testing.assert_array_equal(lived.num_stalls, [one.num_stalls for one in plain])
    np.testing.assert_allclose(lived.stall_s, [one.stall_s for one in plain], atol=1e-7)
    np.testing.assert_array_equal(lived.finished_early, [one.finished_early for one in plain])
    np.testing.assert_array_equal(lived.gave_up, [one.gave_up for one in plain])


def z_score(estimate: Estimate, expected: float) -> float:
    return (estimate.value - expected) / estimate.error


# The plain version ----------------------------------------------------------------------------------------------------


@st.composite
def chains(draw: st.DrawFn) -> Chain:
    """Any chain of up to four states, also with drifts of zero and a state without a way to the others."""
    size = draw(st.integers(1, 4))
    rate = st.sampled_from([0.0, 0.02, 0.1, 0.7])
    generator = np.array([[draw(rate) for _ in range(size)] for _ in range(size)])
    np.fill_diagonal(generator, 0)
    generator -= np.diag(generator.sum(axis=1))
    some = st.sampled_from([0.25, 0.5, 1.0, 1.5, 3.0])
    fill, drain, end = (np.array([draw(some) for _ in range(size)]) for _ in range(3))
    weights = np.array([draw(st.integers(1, 5)) for _ in range(size)])
    return Chain(generator, end * 0.03, fill, weights / weights.sum(), drain)


thresholds = st.sampled_from([0.3, 1.0, 2.5, 8.0])


@given(
    chains(), st.one_of(st.just(0.0), thresholds), thresholds, st.one_of(st.none(), st.sampled_from([3.3721, 40.071]))
)
@settings(max_examples=40, deadline=None)
def test_tagged_videos_equal_the_plain_version(
    chain: Chain, start_s: float, resume_s: float, length_s: float | None
) -> None:
    player = Player(start_s, resume_s)

    lived = play_tagged(chain, player, num_videos=20, seed=5, length_s=length_s)

    chance = Streams(5).stream("tagged videos")
    assert_equal(lived, plain_tagged(chain, player, chance, 20, length_s or math.inf))


# Known numbers --------------------------------------------------------------------------------------------------------

THRESHOLDS_S = (0.5, 2.0, 5.0, 10.0, 20.0, 40.0)
STALL_PROBABILITIES = {
    0.08: (0.02303, 0.01453, 0.00677, 0.00195, 1.6e-4, 1e-6),
    0.10: (0.09034, 0.06215, 0.03267, 0.01134, 0.00137, 2e-5),
    0.12: (0.22264, 0.16286, 0.09364, 0.03749, 0.00601, 1.5e-4),
}


@pytest.mark.parametrize("arrivals_per_s", STALL_PROBABILITIES)
def test_reference_cells_stall_as_often_as_computed(arrivals_per_s: float) -> None:
    cell = reference_cell(arrivals_per_s)

    found = [simulate(cell, Player(start_s), seed=2).stall_probability for start_s in THRESHOLDS_S]

    scores = [z_score(*pair) for pair in zip(found, STALL_PROBABILITIES[arrivals_per_s], strict=True)]
    assert max(abs(score) for score in scores) <= 3.5


@pytest.mark.parametrize(
    ("arrivals_per_s", "start_s", "startup_s", "blocked_share"),
    [
        (0.08, 5, 1.561, 0.0031),
        (0.08, 20, 5.535, 0.0031),
        (0.10, 5, 2.201, 0.0181),
        (0.10, 20, 7.803, 0.0181),
        (0.12, 5, 3.004, 0.0600),
        (0.12, 20, 10.648, 0.0600),
    ],
)
def test_reference_cells_start_as_late_as_computed(
    arrivals_per_s: float, start_s: float, startup_s: float, blocked_share: float
) -> None:
    answer = simulate(reference_cell(arrivals_per_s), Player(start_s), num_videos=100_000, seed=3)

    assert abs(z_score(answer.startup_s, startup_s)) <= 3.5
    assert answer.blocked_share.value == pytest.approx(blocked_share, abs=5e-5)


@pytest.mark.parametrize(("start_s", "num_stalls"), [(0.5, 2.200), (2, 0.481), (5, 0.1462), (10, 0.0432), (20, 0.0061)])
def test_the_number_of_stalls_is_as_computed(start_s: float, num_stalls: float) -> None:
    answer = simulate(reference_cell(0.12), Player(start_s), num_videos=100_000, seed=4)

    assert abs(z_score(answer.num_stalls, num_stalls)) <= 3.5


@pytest.mark.parametrize(("start_s", "resume_s", "stall_s"), [(5, 5, 0.8497), (2, 5, 1.4748), (5, 2, 0.6690)])
def test_the_time_in_stalls_is_as_computed(start_s: float, resume_s: float, stall_s: float) -> None:
    answer = simulate(reference_cell(0.12), Player(start_s, resume_s), num_videos=200_000, seed=5)

    assert abs(z_score(answer.stall_s, stall_s)) <= 3.5


@pytest.mark.parametrize(
    ("length_s", "start_s", "stall_probability"),
    [(60, 2, 0.2093), (60, 10, 0.0349), (300, 10, 0.1649), (30, 5, 0.0573), (60, 20, 0.0)],
)
def test_videos_of_fixed_length_stall_as_often_as_computed(
    length_s: float, start_s: float, stall_probability: float
) -> None:
    chain = chain_of(reference_cell(0.12))

    answer = simulate_tagged(chain, Player(start_s), length_s=length_s, num_videos=200_000, seed=6)

    assert abs(z_score(answer.stall_probability, stall_probability)) <= 3.5


# By hand --------------------------------------------------------------------------------------------------------------


def test_a_steady_download_that_is_too_slow_stalls_at_equal_intervals() -> None:
    lived = play_tagged(one_state(fill=0.5, end=0.0), Player(2.0, 1.0), num_videos=2, length_s=10.0)

    # 4 s to start, then 4 s of play, 2 s of waiting, 2 s of play ... At 20 s all is there, just before a fourth stall.
    assert lived.startup_s.tolist() == [4, 4]
    assert lived.num_stalls.tolist() == [3, 3]
    assert lived.stall_s.tolist() == [6, 6]


def test_a_video_shorter_than_the_threshold_starts_when_it_is_downloaded() -> None:
    answer = simulate_tagged(one_state(fill=4.0, end=0.0), Player(5.0), num_videos=100, length_s=3.0)

    assert answer.startup_s == Estimate(0.75, 0.0)
    assert answer.finished_early.value == 1
    assert answer.stall_probability.value == 0


def test_a_buffer_that_neither_grows_nor_shrinks_never_stalls() -> None:
    answer = simulate(Cell(4e6, 4e6, 0.001, max_users=1), Player(1.0), num_videos=1000)

    assert answer.stall_probability.value == 0


def test_a_whole_number_of_videos_at_full_speed_is_no_special_case() -> None:
    below, exact, above = (
        simulate(Cell(speed, 1.0, 0.07, max_users=10), Player(3.0), seed=1, num_videos=50_000)
        for speed in (4.999, 5.0, 5.001)
    )

    assert exact.stall_probability.value == pytest.approx(below.stall_probability.value, rel=0.05)
    assert exact.stall_probability.value == pytest.approx(above.stall_probability.value, rel=0.05)


def test_playing_at_once_stalls_at_once_where_the_download_is_slow() -> None:
    lived = play_tagged(one_state(fill=0.5, end=0.1), Player(0.0, 1.0), num_videos=500)

    assert lived.startup_s.max() == 0
    assert lived.num_stalls.min() == 1


def test_a_faster_chain_is_the_same_with_a_faster_drain() -> None:
    chain = chain_of(reference_cell(0.12))
    doubled = replace(chain, fill=2 * chain.fill, drain=2 * chain.drain)

    plain, twice = (simulate_tagged(some, Player(q), seed=1) for some, q in ((chain, 5.0), (doubled, 10.0)))

    assert plain == twice


def test_videos_of_every_class_come_as_often_as_they_arrive() -> None:
    cell = replace(reference_cell(0.1), views=(Views(0.75, 20.0), Views(0.25, 180.0)))
    chain = chain_of_any_view(cell)

    answer = simulate(cell, Player(4.0), num_videos=100_000)

    short, long = (simulate_tagged(chain_of(cell, k), Player(4.0), num_videos=100_000, seed=1 + k) for k in (0, 1))
    expected = 0.75 * short.stall_probability.value + 0.25 * long.stall_probability.value
    assert chain.initial.sum() == pytest.approx(1)
    assert abs(z_score(answer.stall_probability, expected)) <= 4.5
    assert long.stall_probability.value > 2 * short.stall_probability.value


# The same again -------------------------------------------------------------------------------------------------------


def small_run(seed: int, simulator: str = "tagged") -> QoeMetrics:
    return simulate(reference_cell(0.12), Player(2.0), simulator=simulator, num_videos=500, seed=seed)


@pytest.mark.parametrize("simulator", ["tagged", "cell", "slots"])
def test_the_same_seed_gives_the_same_numbers(simulator: str) -> None:
    assert small_run(7, simulator) == small_run(7, simulator)
    assert small_run(7, simulator) != small_run(8, simulator)


# What cannot be played ------------------------------------------------------------------------------------------------


def test_an_unknown_simulator_is_named() -> None:
    with pytest.raises(UnknownName, match="no simulator 'slot'; did you mean 'slots'"):
        simulate(reference_cell(0.1), Player(2.0), simulator="slot")


@pytest.mark.parametrize("num_videos", [-1, 0, 1])
@pytest.mark.parametrize("simulator", ["tagged", "cell", "slots"])
def test_too_few_videos_for_an_error_are_refused(simulator: str, num_videos: int) -> None:
    with pytest.raises(BadInput, match="at least 2"):
        simulate(reference_cell(0.1), Player(2.0), simulator=simulator, num_videos=num_videos)


@pytest.mark.parametrize("simulator", ["tagged", "cell", "slots"])
def test_resuming_on_an_empty_buffer_is_refused(simulator: str) -> None:
    with pytest.raises(BadInput, match="stalls again at once"):
        simulate(reference_cell(0.1), Player(0.0), simulator=simulator, num_videos=10)


@pytest.mark.parametrize("length_s", [0.0, -1.0, math.nan, math.inf])
def test_a_length_that_is_none_is_refused(length_s: float) -> None:
    with pytest.raises(BadInput, match="length_s is"):
        simulate_tagged(one_state(1.0, 1.0), Player(1.0), num_videos=10, length_s=length_s)


def test_a_chain_that_may_never_end_is_refused_without_a_length() -> None:
    generator = np.array([[-1.0, 1.0], [0.0, 0.0]])
    chain = Chain(generator, np.array([1.0, 0.0]), np.ones(2), np.array([1.0, 0.0]))

    with pytest.raises(BadInput, match="leads to no end"):
        simulate_tagged(chain, Player(1.0), num_videos=10)


def test_a_chain_with_variance_is_refused() -> None:
    chain = replace(one_state(1.0, 1.0), variance=np.array([0.1]))

    with pytest.raises(BadInput, match="variance"):
        simulate_tagged(chain, Player(1.0), num_videos=10)
