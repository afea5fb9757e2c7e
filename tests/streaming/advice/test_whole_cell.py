"""A cell solved as a whole: curves over the threshold are the single answers, whatever the solver."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from streaming.oracles import reference_cell
from takeup.errors import BadInput
from takeup.papers.qoe.riccati import RiccatiSolver
from takeup.streaming.advice.qoe import (
    SolvedCell,
    check_quick,
    exact_solver,
    expected_mos,
    num_states,
    solve_cell,
)
from takeup.streaming.chains import chain_of, with_abandonment
from takeup.streaming.model import Capacity, Cell, Player, Views
from takeup.streaming.simulate.cell import simulate_cell
from takeup.streaming.solvers.diffusion import DiffusionSolver
from takeup.streaming.solvers.fluid import DoublingSolver
from takeup.streaming.solvers.solution import Solution

CELL = reference_cell()
FADING = Cell(3e6, 1e6, 0.1, max_users=6, opportunistic=True)
OUTAGES = Capacity(np.array([0.0, 1.5]), np.array([[-0.2, 0.2], [0.1, -0.1]]))
CLASSES = Cell(2.8e6, 360e3, 0.12, 4, views=(Views(0.7, 20.0), Views(0.3, 150.0)))

SOLUTIONS: dict[str, Solution] = {
    "doubling": DoublingSolver().solution(chain_of(CELL)),
    "riccati": RiccatiSolver().solution(chain_of(CELL)),
    "diffusion": DiffusionSolver().solution(chain_of(FADING)),
    "outages": DoublingSolver().solution(chain_of(Cell(2.8e6, 360e3, 0.1, 5, capacity=OUTAGES))),
    "impatient": DoublingSolver().solution(with_abandonment(chain_of(CELL), 0.05)),
}


@pytest.mark.parametrize("name", SOLUTIONS)
def test_a_curve_over_the_threshold_is_the_single_answers(name: str) -> None:
    solution = SOLUTIONS[name]
    single = [solution.stall_probability(0.75 * number) for number in range(12)]

    assert solution.stall_curve(0.75, 12) == pytest.approx(np.array(single), abs=1e-11)


def test_the_same_question_twice_has_the_same_answer() -> None:
    solution = SOLUTIONS["doubling"]
    first = solution.answer(Player(5.0, 3.0))
    solution.answer(Player(2.0))

    assert solution.answer(Player(5.0, 3.0)) == first
    assert solution.prefetch(5.0).mean_s == pytest.approx(
        DoublingSolver().solution(chain_of(CELL)).prefetch(5.0).mean_s
    )


def test_classes_of_views_are_averaged_by_their_shares() -> None:
    solved, player = SolvedCell(CLASSES), Player(5.0)
    parts = [DoublingSolver().solution(chain_of(CLASSES, tagged)) for tagged in (0, 1)]
    stalls = [part.stall_probability(5.0) for part in parts]
    scores = [expected_mos(part, player) for part in parts]

    assert solved.answer(player).stall_probability.value == pytest.approx(0.7 * stalls[0] + 0.3 * stalls[1])
    assert solved.mos(player) == pytest.approx(0.7 * scores[0] + 0.3 * scores[1])
    assert solved.stall_curve(2.5, 3)[2] == pytest.approx(0.7 * stalls[0] + 0.3 * stalls[1])
    assert solve_cell(CLASSES, player) == solved.answer(player)


def test_the_solver_goes_by_the_variance_and_the_number_of_states() -> None:
    assert exact_solver(chain_of(CELL)).name == "doubling"
    assert exact_solver(chain_of(FADING)).name == "diffusion"
    many = chain_of(replace(CELL, max_users=401))
    assert exact_solver(many).name == "sparse"
    assert exact_solver(many, is_steady=False).name == "doubling"


@pytest.mark.parametrize("load", [0.6, 0.95, 1.3])
def test_many_users_agree_with_the_schur_form(load: float) -> None:
    cell = Cell(28e6, 360e3, load * 28e6 / 360e3 / 60, max_users=150)
    exact, schur = solve_cell(cell, Player(5.0)), RiccatiSolver().solve(chain_of(cell), Player(5.0))

    assert exact.stall_probability.value == pytest.approx(schur.stall_probability.value, rel=1e-9, abs=1e-14)
    assert exact.num_stalls.value == pytest.approx(schur.num_stalls.value, rel=1e-9, abs=1e-14)


LARGE = Cell(2.8e6, 360e3, 0.06, 14, (Views(0.4, 20.0), Views(0.4, 60.0), Views(0.2, 200.0)))


def test_a_cell_of_many_states_agrees_with_its_simulation() -> None:
    ticks: list[int] = []
    exact = SolvedCell(LARGE, lambda: ticks.append(1))
    simulated = simulate_cell(LARGE, Player(2.0), num_videos=100_000, seed=1)

    assert num_states(LARGE) == 560
    assert len(ticks) == 3
    assert max(map(abs, simulated.z_scores(exact.answer(Player(2.0))).values())) < 3.5


def test_a_question_that_needs_many_answers_refuses_many_states() -> None:
    with pytest.raises(BadInput, match="3 classes of up to 14 users make 560 states"):
        check_quick(LARGE)
    check_quick(replace(LARGE, max_users=7))


def test_a_cell_beyond_all_solvers_is_refused_with_a_way_out() -> None:
    with pytest.raises(BadInput, match=r"5984 states, more than the 4000 .* ask 'takeup streaming simulate cell'"):
        SolvedCell(replace(LARGE, max_users=32))
