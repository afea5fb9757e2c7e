"""The best start threshold."""

from __future__ import annotations

import math

import numpy as np
import pytest

from streaming.oracles import reference_cell
from takeup.errors import BadInput
from takeup.papers.qoe.claims import stall_cost
from takeup.streaming.advice.tuning import best_threshold, waiting_cost
from takeup.streaming.chains import chain_of
from takeup.streaming.model import Player
from takeup.streaming.solvers.fluid import DoublingSolver
from takeup.streaming.solvers.solution import Solution


@pytest.fixture
def solution() -> Solution:
    return DoublingSolver().solution(chain_of(reference_cell()))


@pytest.mark.parametrize(("per_startup_s", "expected"), [(0.001, 25.4), (0.005, 15.7), (0.01, 11.6), (0.02, 7.4)])
def test_the_reference_cell_has_its_known_thresholds(solution: Solution, per_startup_s: float, expected: float) -> None:
    found = best_threshold(solution, stall_cost(per_startup_s))

    assert found.start_s == pytest.approx(expected, abs=0.06)


@pytest.mark.parametrize("cost", [stall_cost(0.003), stall_cost(0.05)])
def test_no_threshold_of_a_fine_grid_is_better(solution: Solution, cost: object) -> None:
    assert callable(cost)
    found = best_threshold(solution, cost, most_s=40.0)
    others = [cost(solution, Player(float(start_s))) for start_s in np.linspace(0.0, 40.0, 161)]

    assert cost(solution, found) <= min(others) + 1e-9


def test_free_waiting_wants_the_longest_and_dear_waiting_the_shortest_threshold(solution: Solution) -> None:
    assert best_threshold(solution, stall_cost(0.0), most_s=30.0).start_s == pytest.approx(30.0, abs=0.01)
    assert best_threshold(solution, stall_cost(10.0), least_s=1.0).start_s == pytest.approx(1.0, abs=0.01)


def test_the_resume_threshold_is_kept_apart_if_given(solution: Solution) -> None:
    found = best_threshold(solution, stall_cost(0.01), resume_s=6.0)

    assert found.again_s == 6.0


@pytest.mark.parametrize("per_stalled_s", [-1.0, math.nan, math.inf])
def test_a_senseless_cost_is_refused(per_stalled_s: float) -> None:
    with pytest.raises(BadInput, match="cost of a second"):
        waiting_cost(per_stalled_s)


@pytest.mark.parametrize(("least_s", "most_s"), [(5.0, 5.0), (-1.0, 5.0), (0.0, math.nan)])
def test_a_senseless_range_is_refused(solution: Solution, least_s: float, most_s: float) -> None:
    with pytest.raises(BadInput, match="no range"):
        best_threshold(solution, stall_cost(0.01), most_s, least_s)
