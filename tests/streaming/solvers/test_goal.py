"""A buffer goal: the reflected fluid queue against simulated videos, its limits, and a case by hand."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from streaming.oracles import reference_cell
from takeup.errors import BadInput
from takeup.papers.qoe.riccati import RiccatiSolver
from takeup.streaming.chains import chain_of
from takeup.streaming.model import Capacity, Cell, Chain, Player, Views
from takeup.streaming.simulate.tagged import simulate_tagged
from takeup.streaming.solvers.diffusion import DiffusionSolver
from takeup.streaming.solvers.fluid import DoublingSolver

FLICKER = Capacity(np.array([0.5, 1.0, 1.6]), np.array([[-0.1, 0.1, 0.0], [0.05, -0.1, 0.05], [0.0, 0.1, -0.1]]))
ALONE = Cell(5e6, 4e6, 0.001, 1, capacity=FLICKER)
LONG_VIDEOS = Cell(2.8e6, 360e3, 0.1, 5, (Views(1.0, 200.0),), capacity=FLICKER)


@pytest.mark.parametrize("cell", [reference_cell(), ALONE, LONG_VIDEOS])
@pytest.mark.parametrize("goal_s", [8.0, 18.0])
def test_the_equations_agree_with_simulated_videos(cell: Cell, goal_s: float) -> None:
    chain, player = chain_of(cell), Player(5.0, 3.0, goal_s)
    scores = simulate_tagged(chain, player, num_videos=60_000, seed=3).z_scores(DoublingSolver().solve(chain, player))

    assert max(map(abs, scores.values())) < 3.5


def test_a_goal_is_never_better_and_a_high_one_is_none() -> None:
    solution = DoublingSolver().solution(chain_of(reference_cell()))
    chances = [solution.stall_probability(5.0, goal_s) for goal_s in (5.0, 8.0, 18.0, 40.0, 1e5, math.inf)]

    assert chances == sorted(chances, reverse=True)
    assert chances[-2] == pytest.approx(chances[-1], rel=1e-9)


def test_by_hand_a_buffer_that_alternates() -> None:
    """Good (buffer +1/s) and bad (-1/s), changing at rate 1, downloads ending at rate e per second of content."""
    end = 0.01
    rates = np.array([[-1.0, 1.0], [1.0, -1.0]])
    chain = Chain(rates, np.array([2 * end, 1e-9 * end]), np.array([2.0, 1e-9]), np.array([1.0, 0.0]))
    goal_s, step_s = 6.0, 1e-3
    places = np.arange(0.0, goal_s + step_s / 2, step_s)
    up, down = np.zeros(len(places)), np.zeros(len(places))
    down[0] = 1.0
    for _ in range(40_000):  # upwind sweeps of W(x), the probability to run empty with x seconds in the buffer
        was = up[0]
        up[-1] = down[-1] / (1 + end)
        for place in range(len(places) - 2, -1, -1):
            up[place] = (up[place + 1] + step_s * down[place]) / (1 + step_s * (1 + 2 * end))
        for place in range(1, len(places)):
            down[place] = (down[place - 1] + step_s * up[place]) / (1 + step_s)
        if abs(up[0] - was) < 1e-12:
            break
    solution = DoublingSolver().solution(chain)
    found = solution.playback_below(goal_s).empties(3.0)[:, 0]

    assert found == pytest.approx([up[3000], down[3000]], abs=2e-3)


def test_both_solvers_have_the_goal_and_the_one_with_variance_refuses_it() -> None:
    chain, player = chain_of(reference_cell()), Player(5.0, 3.0, 12.0)

    assert RiccatiSolver().solve(chain, player).stall_s.value == pytest.approx(
        DoublingSolver().solve(chain, player).stall_s.value
    )
    noisy = replace(chain, variance=np.full(chain.num_states, 0.1))
    with pytest.raises(BadInput, match="with variance is solved without a buffer goal"):
        DiffusionSolver().solve(noisy, player)


def test_a_goal_below_the_threshold_is_where_playback_starts() -> None:
    solution = DoublingSolver().solution(chain_of(reference_cell()))

    assert solution.answer(Player(20.0, 20.0, 8.0)) == solution.answer(Player(8.0, 8.0, 8.0))


def test_a_player_without_a_resume_threshold_has_no_goal() -> None:
    with pytest.raises(BadInput, match="resumes on an empty buffer"):
        DoublingSolver().solve(chain_of(reference_cell()), Player(5.0, 0.0, 12.0))
