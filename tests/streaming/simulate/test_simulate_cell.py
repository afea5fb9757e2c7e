"""The whole cell against the plain version, against equations, and its batch means."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streaming.plain_cell import Watched, plain_cell
from takeup.core.seeds import Streams
from takeup.errors import BadInput
from takeup.streaming.model import Capacity, Cell, Estimate, Player, Views
from takeup.streaming.simulate import simulate
from takeup.streaming.simulate.cell import play_cell, simulate_cell
from takeup.streaming.simulate.video_records import VideoRecords, empty_records, metrics_from_batches

REFERENCE = Cell(2.8e6, 360e3, 0.1, max_users=10)
TWO_LEVELS = Capacity(np.array([0.4, 1.6]), np.array([[-0.05, 0.05], [0.05, -0.05]]))
WITH_OUTAGE = Capacity(np.array([0.0, 1.0, 2.0]), np.array([[-0.3, 0.3, 0], [0.1, -0.2, 0.1], [0, 0.2, -0.2]]))
SHORT_AND_LONG = (Views(0.7, 20.0), Views(0.3, 150.0))


def assert_equal(lived: VideoRecords, plain: list[Watched]) -> None:
    np.testing.assert_allclose(lived.startup_s, [one.startup_s for one in plain], atol=1e-7)
    np.testing.assert_array_equal(lived.num_stalls, [one.num_stalls for one in plain])
    np.testing.assert_allclose(lived.stall_s, [one.stall_s for one in plain], atol=1e-7)
    np.testing.assert_array_equal(lived.finished_early, [one.finished_early for one in plain])
    np.testing.assert_array_equal(lived.num_blocked, [one.num_blocked for one in plain])


def z_score(estimate: Estimate, expected: float) -> float:
    return (estimate.value - expected) / estimate.error


# The plain version ----------------------------------------------------------------------------------------------------

cells = st.builds(
    Cell,
    capacity_bps=st.sampled_from([0.9, 2.0, 5.0, 7.7]),
    bitrate_bps=st.just(1.0),
    arrivals_per_s=st.sampled_from([0.01, 0.05, 0.12, 0.3]),
    max_users=st.integers(1, 6),
    views=st.sampled_from([(Views(1.0, 60.0),), SHORT_AND_LONG]),
    opportunistic=st.booleans(),
    capacity=st.sampled_from([None, TWO_LEVELS, WITH_OUTAGE]),
)
players = st.builds(Player, st.sampled_from([0.7, 2.1, 9.3]), st.sampled_from([None, 0.9, 4.7]))


@given(cells, players)
@settings(max_examples=40, deadline=None)
def test_the_cell_equals_the_plain_version(cell: Cell, player: Player) -> None:
    lived = play_cell(cell, player, num_videos=40, seed=3).records

    streams = Streams(3).child("whole cell")
    chances = (streams.stream("arrivals"), streams.stream("lengths"), streams.stream("capacity"))
    assert_equal(lived, plain_cell(cell, player, chances, 42)[2:])  # two of them are the warm-up


# Equations ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arrivals_per_s", "start_s", "stall_probability"),
    [
        (0.10, 2, 0.06215),
        (0.10, 5, 0.03267),
        (0.10, 10, 0.01134),
        (0.12, 2, 0.16286),
        (0.12, 5, 0.09364),
        (0.12, 10, 0.03749),
    ],
)
def test_the_whole_cell_stalls_as_often_as_computed(
    arrivals_per_s: float, start_s: float, stall_probability: float
) -> None:
    cell = replace(REFERENCE, arrivals_per_s=arrivals_per_s)

    answer = simulate_cell(cell, Player(start_s), seed=4)

    assert abs(z_score(answer.stall_probability, stall_probability)) <= 3.5


def test_a_share_of_arrivals_is_blocked_as_in_a_queue_with_limited_room() -> None:
    load = REFERENCE.load

    answer = simulate_cell(REFERENCE, Player(2.0), num_videos=200_000)

    expected = load**10 * (1 - load) / (1 - load**11)
    assert abs(z_score(answer.blocked_share, expected)) <= 3.5


@pytest.mark.parametrize(
    "cell",
    [
        replace(REFERENCE, views=SHORT_AND_LONG, arrivals_per_s=0.09),
        replace(REFERENCE, opportunistic=True, capacity_bps=1.2e6),
        replace(REFERENCE, capacity=TWO_LEVELS),
        replace(REFERENCE, capacity=WITH_OUTAGE),
        replace(REFERENCE, capacity_bps=5 * 360e3, arrivals_per_s=0.06),
        replace(REFERENCE, max_users=1, capacity_bps=0.9 * 360e3, arrivals_per_s=0.01),
        replace(REFERENCE, arrivals_per_s=0.4),
    ],
    ids=["classes", "opportunistic", "levels", "outages", "whole number", "one user", "overload"],
)
def test_the_whole_cell_and_a_tagged_video_agree(cell: Cell) -> None:
    player = Player(3.0, 5.0)

    whole, tagged = (simulate(cell, player, simulator=name, num_videos=60_000) for name in ("cell", "tagged"))

    assert {name: score for name, score in whole.z_scores(tagged).items() if abs(score) > 3.5} == {}


# By hand --------------------------------------------------------------------------------------------------------------


def test_one_user_with_more_than_it_needs_never_stalls() -> None:
    answer = simulate_cell(replace(REFERENCE, max_users=1), Player(2.0), num_videos=1000)

    assert answer.stall_probability.value == 0
    assert answer.stall_probability.error > 0


def test_one_user_waits_for_the_threshold_or_the_end_of_a_short_video() -> None:
    lived = play_cell(replace(REFERENCE, max_users=1), Player(7.0), num_videos=1000).records

    assert lived.startup_s.max() == pytest.approx(7.0 / REFERENCE.speed)
    np.testing.assert_array_equal(lived.finished_early, lived.startup_s < lived.startup_s.max() - 1e-9)


def test_a_player_that_starts_at_once_stalls_at_once_in_an_outage() -> None:
    lived = play_cell(replace(REFERENCE, capacity=WITH_OUTAGE), Player(0.0, 2.0), num_videos=2000).records

    assert lived.startup_s.max() == 0
    assert 0.3 < (lived.num_stalls > 0).mean() < 1


def test_events_are_arrivals_departures_and_what_players_do() -> None:
    played = play_cell(replace(REFERENCE, max_users=1), Player(2.0), num_videos=2000)

    # Alone, a video never stalls: it comes, starts unless it is shorter, and leaves. The warm-up has 100 videos.
    upper = 3 * 2100 + 1.3 * played.records.num_blocked.sum()
    assert 2.5 * 2100 + played.records.num_blocked.sum() < played.num_events < upper


def test_a_single_level_of_capacity_is_a_constant() -> None:
    single = Capacity(np.array([0.5]), np.zeros((1, 1)))
    half = replace(REFERENCE, capacity_bps=REFERENCE.capacity_bps / 2)

    changing, constant = (
        simulate_cell(cell, Player(2.0), num_videos=500) for cell in (replace(REFERENCE, capacity=single), half)
    )

    assert changing == constant


def test_levels_that_are_not_connected_are_refused() -> None:
    trap = Capacity(np.array([1.0, 0.0]), np.array([[-0.1, 0.1], [0.0, 0.0]]))

    with pytest.raises(BadInput, match="never reached from another"):
        simulate_cell(replace(REFERENCE, capacity=trap), Player(2.0), num_videos=10)


def test_the_same_videos_come_whatever_the_player() -> None:
    eager, careful = (play_cell(REFERENCE, Player(start_s), num_videos=500).records for start_s in (1.0, 10.0))

    np.testing.assert_array_equal(eager.num_blocked, careful.num_blocked)
    assert (eager.startup_s <= careful.startup_s + 1e-9).all()


# Errors ---------------------------------------------------------------------------------------------------------------


def lived_with_stalls(num_stalls: list[int]) -> VideoRecords:
    return empty_records(len(num_stalls))._replace(num_stalls=np.array(num_stalls))


def test_batch_means_see_the_correlation_that_single_videos_hide() -> None:
    bad_days = lived_with_stalls(([1] * 200 + [0] * 800) * 10)
    scattered = lived_with_stalls([1, 0, 0, 0, 0] * 2000)

    together, apart = (metrics_from_batches("test", lived).stall_probability for lived in (bad_days, scattered))

    assert together.value == apart.value == 0.2
    assert together.error == pytest.approx(0.4 / math.sqrt(49))
    assert apart.error == pytest.approx(0.4 / math.sqrt(10_000), rel=0.01)


def test_what_never_happened_is_not_known_to_be_impossible() -> None:
    answer = metrics_from_batches("test", lived_with_stalls([0] * 1000))

    assert answer.stall_probability.value == answer.blocked_share.value == 0
    assert answer.stall_probability.error == pytest.approx(math.sqrt(2) / 1000, rel=0.01)
    assert answer.blocked_share.error > 0


def test_errors_of_independent_runs_cover_their_scatter() -> None:
    answers = [simulate_cell(REFERENCE, Player(5.0), num_videos=20_000, seed=seed) for seed in range(40)]

    scatter = np.std([answer.stall_probability.value for answer in answers], ddof=1)
    claimed = np.mean([answer.stall_probability.error for answer in answers])
    assert 0.7 < claimed / scatter < 1.4
