"""Adaptive bit rate that follows the buffer, against the plain solver and finite differences."""

from __future__ import annotations

import numpy as np
import pytest
from takeup.streaming.policies.abr_buffer import BufferAbrSolver

from streaming.oracles import grid_empties, reference_cell
from takeup.errors import BadInput
from takeup.streaming.chains import chain_of, ps_cell
from takeup.streaming.model import Player
from takeup.streaming.policies.riccati import RiccatiSolver

NAMES = ("startup_s", "stall_probability", "num_stalls", "stall_s", "finished_early")


@pytest.mark.parametrize("levels_s", [(), (3.0,), (3.0, 12.0)])
def test_levels_that_hardly_differ_are_the_plain_player(levels_s: tuple[float, ...]) -> None:
    chain = chain_of(reference_cell())
    ladder = [360e3 * (1 + 1e-10 * number) for number in range(len(levels_s) + 1)]
    found = BufferAbrSolver(ladder, levels_s, 360e3).solve(chain, Player(5.0, 15.0))
    expected = RiccatiSolver().solve(chain, Player(5.0, 15.0))

    for name in NAMES:
        assert getattr(found, name).value == pytest.approx(getattr(expected, name).value, rel=1e-6), name


@pytest.mark.parametrize("speed", [2.3, 3.0])
def test_three_levels_agree_with_finite_differences(speed: float) -> None:
    chain = ps_cell(speed, 20.0, 0.1, 4)
    playback = BufferAbrSolver([0.8, 1.0, 1.6], [2.0, 5.0], 1.0).solution(chain).playback
    grids = {step_s: grid_empties(chain, step_s, 60.0, (0.8, 1.0, 1.6), (2.0, 5.0)) for step_s in (0.1, 0.05)}

    for buffer_s in (1.0, 2.0, 3.0, 5.0, 8.0):
        coarse, fine = (grid[round(buffer_s / step_s)] for step_s, grid in grids.items())
        assert playback.empties(buffer_s).sum(axis=1) == pytest.approx(2 * fine - coarse, abs=2e-3)


def test_the_law_is_continuous_where_the_level_changes() -> None:
    solution = BufferAbrSolver([320e3, 500e3, 900e3], [5.0, 12.0], 360e3).solution(chain_of(reference_cell()))

    for border_s in (5.0, 12.0):
        below, above = solution.playback.empties(border_s - 1e-9), solution.playback.empties(border_s)
        assert below == pytest.approx(above, abs=1e-7)


def test_a_cautious_first_level_saves_stalls_and_a_greedy_last_one_costs_some() -> None:
    chain, player = chain_of(reference_cell()), Player(4.0)
    cautious, plain, greedy = (
        BufferAbrSolver(ladder, [4.0], 360e3).solve(chain, player).stall_probability.value
        for ladder in ([300e3, 360e3], [359.9e3, 360e3], [360e3, 900e3])
    )

    assert cautious < plain < greedy


def test_a_lowest_level_that_always_fits_never_stalls() -> None:
    answer = BufferAbrSolver([200e3, 700e3], [10.0], 360e3).solve(chain_of(reference_cell()), Player(2.0))

    assert answer.stall_probability.value == 0.0


def test_a_stutterer_is_the_limit_of_small_resume_thresholds() -> None:
    solution = BufferAbrSolver([320e3, 500e3], [5.0], 360e3).solution(chain_of(reference_cell()))

    exact, near = solution.answer(Player(3.0, 0.0)), solution.answer(Player(3.0, 1e-6))
    assert exact.stall_s.value == pytest.approx(near.stall_s.value, rel=1e-5)


def test_waiting_passes_the_levels_from_below() -> None:
    chain = ps_cell(3.0, 60.0, 0.1, 1)
    waited = BufferAbrSolver([1.0, 2.0, 4.0], [2.0, 5.0], 1.0).solution(chain).prefetch(6.0)

    assert waited.starts_in.sum() == pytest.approx(np.exp(-6.0 / 60))
    assert waited.finished[0] == pytest.approx(1 - np.exp(-6.0 / 60))
    assert waited.mean_s[0] < (2.0 * 1 + 3.0 * 2 + 1.0 * 4) / 3.0


@pytest.mark.parametrize(
    ("ladder", "levels_s", "message"),
    [
        ([1e6, 5e5], [3.0], "rising order"),
        ([5e5, 1e6], [], "need 1 levels_s"),
        ([5e5, 1e6], [0.0], "above zero in rising order"),
        ([5e5, 1e6, 2e6], [5.0, 4.0], "above zero in rising order"),
        ([5e5, 1e6], [1e9], "seconds of video from 0"),
    ],
)
def test_senseless_levels_are_refused(ladder: list[float], levels_s: list[float], message: str) -> None:
    with pytest.raises(BadInput, match=message):
        BufferAbrSolver(ladder, levels_s, 360e3)
