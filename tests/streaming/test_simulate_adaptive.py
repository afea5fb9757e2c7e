"""Whole cells of players that adapt: against the plain version, against equations, and by hand."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streaming.plain_cell import plain_cell
from takeup.core.seeds import Streams
from takeup.errors import BadInput
from takeup.streaming.model import Capacity, Cell, Player, Views
from takeup.streaming.simulate import play_adaptive, simulate_adaptive

CELL = Cell(2.8e6, 360e3, 0.12, max_users=10)

cells = st.builds(
    Cell,
    capacity_bps=st.sampled_from([0.9, 2.0, 5.0, 7.7]),
    bitrate_bps=st.just(1.0),
    arrivals_per_s=st.sampled_from([0.01, 0.05, 0.12, 0.3]),
    max_users=st.integers(1, 6),
    views=st.sampled_from([(Views(1.0, 60.0),), (Views(0.7, 20.0), Views(0.3, 150.0))]),
    opportunistic=st.booleans(),
)
players = st.builds(Player, st.sampled_from([0.7, 2.1, 9.3]), st.sampled_from([None, 0.9, 4.7]))


@given(cells, players, st.sampled_from([[], [1.3], [1.3, 6.1]]))
@settings(max_examples=40, deadline=None)
def test_a_ladder_of_equal_steps_is_the_plain_cell(cell: Cell, player: Player, levels_s: list[float]) -> None:
    ladder = [1.0 + 1e-13 * number for number in range(len(levels_s) + 1)]
    lived = play_adaptive(cell, player, ladder, levels_s, num_videos=40, seed=3).records

    streams = Streams(3).child("adapting cell")
    chances = (streams.stream("arrivals"), streams.stream("lengths"), streams.stream("capacity"))
    plain = plain_cell(cell, player, chances, 42)[2:]  # two of them are the warm-up
    np.testing.assert_allclose(lived.startup_s, [one.startup_s for one in plain], atol=1e-6)
    np.testing.assert_array_equal(lived.num_stalls, [one.num_stalls for one in plain])
    np.testing.assert_allclose(lived.stall_s, [one.stall_s for one in plain], atol=1e-6)
    np.testing.assert_array_equal(lived.finished_early, [one.finished_early for one in plain])
    np.testing.assert_array_equal(lived.num_blocked, [one.num_blocked for one in plain])


def test_a_lowest_level_that_always_fits_never_stalls() -> None:
    assert not play_adaptive(CELL, Player(2.0), (200e3, 700e3), (10.0,), num_videos=5_000).records.num_stalls.any()


def test_a_greedier_ladder_fills_the_cell() -> None:
    modest, greedy = (
        simulate_adaptive(CELL, Player(5.0), ladder, (8.0,), num_videos=20_000).blocked_share.value
        for ladder in ((300e3, 400e3), (300e3, 1200e3))
    )

    assert greedy > 1.2 * modest


def test_the_same_seed_gives_the_same_videos() -> None:
    one, same, other = (
        play_adaptive(CELL, Player(5.0), (300e3, 600e3), (8.0,), num_videos=500, seed=seed).records
        for seed in (1, 1, 2)
    )

    assert np.array_equal(one.startup_s, same.startup_s)
    assert not np.array_equal(one.startup_s, other.startup_s)


@pytest.mark.parametrize(
    ("cell", "ladder_bps", "levels_s", "message"),
    [
        (Cell(1.0, 1.0, 1.0, 2, capacity=Capacity(np.ones(1), np.zeros((1, 1)))), [1.0], [], "constant capacity"),
        (CELL, [5e5, 3e5], [4.0], "rising order"),
        (CELL, [3e5, 5e5], [], "need 1 levels_s"),
    ],
)
def test_what_cannot_be_played_is_refused(
    cell: Cell, ladder_bps: list[float], levels_s: list[float], message: str
) -> None:
    with pytest.raises(BadInput, match=message):
        play_adaptive(cell, Player(5.0), ladder_bps, levels_s, num_videos=100)
