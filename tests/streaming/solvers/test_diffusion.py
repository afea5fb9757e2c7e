"""The solver with scatter against known numbers, finite differences and its limits."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from streaming.oracles import grid_empties, ps_cell, reference_cell
from takeup.errors import BadInput
from takeup.streaming.chains import chain_of, with_vbr
from takeup.streaming.model import Cell, Chain, Player
from takeup.streaming.solvers.diffusion import DiffusionSolver
from takeup.streaming.solvers.fluid import DoublingSolver

SOLVER = DiffusionSolver()


def fading_cell(arrivals_per_s: float) -> Chain:
    return chain_of(Cell(3.0, 1.0, arrivals_per_s, 10, opportunistic=True))


@pytest.mark.parametrize(
    ("arrivals_per_s", "threshold_s", "without", "expected"),
    [
        (0.10, 2, 0.0525, 0.0593),
        (0.10, 5, 0.0117, 0.0141),
        (0.125, 2, 0.1405, 0.1532),
        (0.125, 5, 0.0400, 0.0458),
        (0.125, 10, 0.0049, 0.0061),
    ],
)
def test_an_opportunistic_cell_has_its_known_numbers(
    arrivals_per_s: float, threshold_s: float, without: float, expected: float
) -> None:
    chain = fading_cell(arrivals_per_s)

    assert DoublingSolver().solution(chain).stall_probability(threshold_s) == pytest.approx(without, abs=5e-5)
    assert SOLVER.solution(chain).stall_probability(threshold_s) == pytest.approx(expected, abs=5e-5)


@pytest.mark.parametrize(("threshold_s", "expected"), [(5, (0.0936, 0.0991, 0.1136)), (20, (0.0060, 0.0068, 0.0095))])
def test_a_variable_bit_rate_has_its_known_numbers(threshold_s: float, expected: tuple[float, ...]) -> None:
    chain = chain_of(reference_cell())
    found = [SOLVER.solution(with_vbr(chain, cv, 1.0)).stall_probability(threshold_s) for cv in (0, 0.05**0.5, 0.5)]

    assert found == pytest.approx(expected, abs=5e-5)


def test_a_variable_bit_rate_matters_in_a_cell_near_its_limit() -> None:
    solution = SOLVER.solution(with_vbr(fading_cell(0.1), 0.5, 1.0))

    assert [solution.stall_probability(q) for q in (2, 5, 10)] == pytest.approx([0.1230, 0.0402, 0.0077], abs=5e-5)


def test_without_scatter_it_is_the_first_order_solver() -> None:
    chain = chain_of(reference_cell())
    found, expected = (solver.solve(chain, Player(5.0)) for solver in (SOLVER, DoublingSolver()))

    assert found == replace(expected, source="diffusion")


@pytest.mark.parametrize("variance", [1e-6, 1e-5])
def test_little_scatter_changes_little(variance: float) -> None:
    chain = chain_of(reference_cell())
    noisy = SOLVER.solution(replace(chain, variance=np.full(10, variance)))

    for threshold_s in (2.0, 10.0):
        quiet = DoublingSolver().solution(chain).stall_probability(threshold_s)
        assert noisy.stall_probability(threshold_s) == pytest.approx(quiet, rel=1e-4)


@pytest.mark.parametrize("quiet_states", [(), (0,), (1,), (2,), (0, 2)])
def test_scatter_in_some_states_agrees_with_finite_differences(quiet_states: tuple[int, ...]) -> None:
    chain = ps_cell(2.0, 20.0, 0.1, 3)  # the buffer grows, stands still and falls
    variance = np.array([0.4, 0.6, 0.5])
    variance[list(quiet_states)] = 0.0
    chain = replace(chain, variance=variance)
    coarse, fine = (grid_empties(chain, step_s, 60.0)[round(3.0 / step_s)] for step_s in (0.1, 0.05))

    found = SOLVER.solution(chain).playback.empties(3.0).sum(axis=1)
    assert found == pytest.approx(2 * fine - coarse, abs=2e-3)


def test_one_quiet_state_is_the_limit_of_vanishing_scatter_there() -> None:
    chain = fading_cell(0.125)
    quiet = np.where(np.arange(10) == 8, 0.0, 0.05)
    exact = SOLVER.solution(replace(chain, variance=quiet)).stall_probability(5.0)
    near = [SOLVER.solution(replace(chain, variance=np.maximum(quiet, e))).stall_probability(5.0) for e in (1e-4, 1e-6)]

    assert near[1] == pytest.approx(exact, rel=2e-4)
    assert abs(near[1] - exact) < abs(near[0] - exact)


def test_a_stutterer_with_scatter_is_the_limit_of_small_resume_thresholds() -> None:
    solution = SOLVER.solution(with_vbr(chain_of(reference_cell()), 0.5, 1.0))

    assert solution.answer(Player(5.0, 0.0)).stall_s.value == pytest.approx(
        solution.answer(Player(5.0, 1e-5)).stall_s.value, rel=1e-3
    )


def test_a_download_that_never_ends_is_refused() -> None:
    chain = with_vbr(ps_cell(0.5, 60.0, 0.1, 1), 0.5, 1.0)

    with pytest.raises(BadInput, match="may never end"):
        SOLVER.solution(replace(chain, end=np.zeros(1), drain=np.array([0.5])))
