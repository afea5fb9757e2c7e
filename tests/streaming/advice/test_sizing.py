"""Limits of a cell for a target: at the limit it holds, beyond it does not."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from streaming.oracles import reference_cell
from takeup.errors import BadInput
from takeup.streaming.advice.qoe import solve_cell
from takeup.streaming.advice.tuning import StallTarget, max_admission, max_arrivals, min_capacity
from takeup.streaming.chains import chain_of
from takeup.streaming.model import Cell, Player, Views
from takeup.streaming.solvers.fluid import DoublingSolver

PLAYER = Player(5.0)


@pytest.mark.parametrize("share", [0.001, 0.05, 0.3])
def test_arrivals_and_capacity_are_at_their_limits(share: float) -> None:
    cell, target = reference_cell(), StallTarget(share)
    arrivals_per_s, capacity_bps = max_arrivals(cell, PLAYER, target), min_capacity(cell, PLAYER, target)

    for limit, beyond in (
        (replace(cell, arrivals_per_s=arrivals_per_s), replace(cell, arrivals_per_s=arrivals_per_s * 1.0001)),
        (replace(cell, capacity_bps=capacity_bps), replace(cell, capacity_bps=capacity_bps * 0.9999)),
    ):
        assert target.holds(limit, PLAYER)
        assert not target.holds(beyond, PLAYER)


def test_admission_is_at_its_limit() -> None:
    cell, target = reference_cell(), StallTarget(0.05)
    most = max_admission(cell, PLAYER, target)

    assert most == 9
    assert target.holds(replace(cell, max_users=most), PLAYER)
    assert not target.holds(replace(cell, max_users=most + 1), PLAYER)


def test_admission_stops_at_the_number_asked_for() -> None:
    assert max_admission(reference_cell(0.02), PLAYER, StallTarget(0.2), most=50) == 50
    assert max_admission(reference_cell(), PLAYER, StallTarget(0.05), most=4) == 4


def test_few_users_keep_the_target_at_any_load() -> None:
    assert max_arrivals(reference_cell(max_users=7), PLAYER, StallTarget(0.01)) == math.inf


def test_what_cannot_be_reached_is_said() -> None:
    slow = Cell(2e5, 360e3, 0.1, 5)

    with pytest.raises(BadInput, match="even a video alone"):
        max_arrivals(slow, PLAYER, StallTarget(0.01))
    with pytest.raises(BadInput, match="even one user at a time"):
        max_admission(slow, PLAYER, StallTarget(0.01))


@pytest.mark.parametrize("share", [0.0, 1.0, math.nan, -0.1])
def test_a_senseless_target_is_refused(share: float) -> None:
    with pytest.raises(BadInput, match="target for stalls"):
        StallTarget(share)


def test_a_cell_answers_for_the_mean_of_its_views() -> None:
    cell = Cell(2.8e6, 360e3, 0.12, 8, (Views(0.25, 20.0), Views(0.75, 80.0)))
    whole = solve_cell(cell, PLAYER)
    short, long = (DoublingSolver().solve(chain_of(cell, tagged), PLAYER) for tagged in (0, 1))

    assert whole.source == "doubling"
    for name in ("stall_probability", "startup_s", "stall_s", "blocked_share"):
        mean = 0.25 * getattr(short, name).value + 0.75 * getattr(long, name).value
        assert getattr(whole, name).value == pytest.approx(mean), name
    assert solve_cell(replace(cell, opportunistic=True), PLAYER).source == "diffusion"
