"""Slots against the plain version, the fluid cell, and the numbers of the diffusion equation."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streaming.plain_cell import SlotGrain, plain_slots
from takeup.core.seeds import Streams
from takeup.errors import BadInput
from takeup.streaming.advice.qoe import solve_cell
from takeup.streaming.model import Capacity, Cell, Estimate, Player, Views
from takeup.streaming.simulate.cell import simulate_cell
from takeup.streaming.simulate.slots import Slots, play_slots, simulate_slots

REFERENCE = Cell(2.8e6, 360e3, 0.12, max_users=10)


def fading_cell(arrivals_per_s: float) -> Cell:
    """Drifts within an eighth of zero: a cell where small variations count."""
    return Cell(3e6, 1e6, arrivals_per_s, max_users=10, opportunistic=True)


def z_score(estimate: Estimate, expected: float) -> float:
    return (estimate.value - expected) / estimate.error


cells = st.builds(
    Cell,
    capacity_bps=st.sampled_from([0.9, 2.0, 4.0]),
    bitrate_bps=st.just(1.0),
    arrivals_per_s=st.sampled_from([0.05, 0.3]),
    max_users=st.integers(1, 5),
    views=st.sampled_from([(Views(1.0, 15.0),), (Views(0.7, 5.0), Views(0.3, 40.0))]),
    opportunistic=st.booleans(),
)
players = st.builds(Player, st.sampled_from([0.0, 0.73, 2.11]), st.sampled_from([0.91, 1.37]))


@given(cells, players, st.sampled_from([0.0, 0.5]))
@settings(max_examples=20, deadline=None)
def test_slots_equal_the_plain_version(cell: Cell, player: Player, variation: float) -> None:
    lived = play_slots(cell, player, Slots(0.05, 0.5, variation), num_videos=8, seed=2).records

    streams = Streams(2).child("slots")
    chances = tuple(streams.stream(name) for name in ("arrivals", "lengths", "fading", "pictures"))
    plain = plain_slots(cell, player, SlotGrain(0.05, 10, variation), chances, 8)
    np.testing.assert_allclose(lived.startup_s, [one.startup_s for one in plain], atol=1e-7)
    np.testing.assert_array_equal(lived.num_stalls, [one.num_stalls for one in plain])
    np.testing.assert_allclose(lived.stall_s, [one.stall_s for one in plain], atol=1e-7)
    np.testing.assert_array_equal(lived.finished_early, [one.finished_early for one in plain])
    np.testing.assert_array_equal(lived.num_blocked, [one.num_blocked for one in plain])


def test_without_variation_slots_are_the_fluid_cell() -> None:
    slots = simulate_slots(REFERENCE, Player(5.0), Slots(slot_s=0.01), num_videos=20_000, seed=1)

    fluid = simulate_cell(REFERENCE, Player(5.0), num_videos=200_000)
    assert {name: score for name, score in slots.z_scores(fluid).items() if abs(score) > 3.5} == {}


@pytest.mark.parametrize(
    ("arrivals_per_s", "start_s", "stall_probability"), [(0.1, 2, 0.0593), (0.125, 2, 0.1532), (0.125, 5, 0.0458)]
)
def test_fading_stalls_as_often_as_the_diffusion_says(
    arrivals_per_s: float, start_s: float, stall_probability: float
) -> None:
    answer = simulate_slots(fading_cell(arrivals_per_s), Player(start_s), num_videos=2500, seed=3)

    assert abs(z_score(answer.stall_probability, stall_probability)) <= 3.5


def test_groups_of_pictures_that_vary_stall_as_often_as_the_diffusion_says() -> None:
    slots = Slots(slot_s=0.01, gop_s=1.0, gop_variation=0.5)

    answer = simulate_slots(REFERENCE, Player(5.0), slots, num_videos=20_000, seed=4)

    assert abs(z_score(answer.stall_probability, 0.1136)) <= 3.5


def test_variation_doubles_stalls_where_drifts_are_small() -> None:
    even, varied = (
        simulate_slots(fading_cell(0.1), Player(2.0), Slots(gop_variation=variation), num_videos=2000, seed=5)
        for variation in (0.0, 0.5)
    )

    assert 1.5 < varied.stall_probability.value / even.stall_probability.value < 3


def test_the_best_of_several_channels_beats_the_mean() -> None:
    crowd = Cell(1e6, 1e6, 1.0, max_users=4, opportunistic=True)

    played = play_slots(crowd, Player(2.0), num_videos=300)

    accepted_per_s = 300 / (played.num_events * 0.002 * 300 / 315)  # with the warm-up; the cell is full all the time
    assert accepted_per_s * 60 == pytest.approx(1 + 1 / 2 + 1 / 3 + 1 / 4, rel=0.2)


def test_a_slot_longer_than_a_group_of_pictures_is_refused() -> None:
    with pytest.raises(BadInput, match="slot_s <= gop_s"):
        Slots(slot_s=0.01, gop_s=0.001)


@pytest.mark.parametrize(
    ("slot_s", "gop_s", "variation"),
    [(0.0, 1.0, 0.0), (math.nan, 1.0, 0.0), (0.002, math.inf, 0.0), (0.002, 1.0, -0.1), (0.002, 1.0, math.nan)],
)
def test_a_grain_that_is_no_number_is_refused(slot_s: float, gop_s: float, variation: float) -> None:
    with pytest.raises(BadInput, match="do not fit"):
        Slots(slot_s, gop_s, variation)


def test_slots_are_for_a_constant_capacity() -> None:
    changing = Cell(3e6, 1e6, 0.1, max_users=10, capacity=Capacity(np.ones(1), np.zeros((1, 1))))

    with pytest.raises(BadInput, match="constant capacity"):
        simulate_slots(changing, Player(2.0), num_videos=10)


@pytest.mark.parametrize(("variation", "start_s"), [(0.5, 2.5), (1.0, 10.0), (1.5, 22.5)])
def test_a_variable_bit_rate_is_a_diffusion_from_the_threshold_on_at_which_the_warning_ends(
    variation: float, start_s: float
) -> None:
    cell = Cell(2.8e6, 360e3, 0.1, max_users=10, variation=variation)
    found = simulate_slots(cell, Player(start_s), Slots(0.02, 1.0, variation), num_videos=60_000, seed=1)
    expected = solve_cell(cell, Player(start_s)).stall_probability.value

    chance = found.stall_probability
    assert abs(chance.value - expected) < 0.1 * expected + 3 * chance.error


def test_below_that_threshold_the_diffusion_says_too_many_stalls() -> None:
    cell = Cell(2.8e6, 360e3, 0.1, max_users=10, variation=1.0)
    found = simulate_slots(cell, Player(1.0), Slots(0.02, 1.0, 1.0), num_videos=60_000, seed=1).stall_probability

    assert solve_cell(cell, Player(1.0)).stall_probability.value > found.value + 4 * found.error
