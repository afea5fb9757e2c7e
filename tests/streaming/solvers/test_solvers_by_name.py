"""Every solver that can be asked for by name gives the same answer about the same cell."""

from __future__ import annotations

import pytest

from takeup.streaming import SOLVERS, Cell, Player, chain_of, find_solver, solve_cell


@pytest.mark.parametrize("name", SOLVERS)
def test_every_solver_by_name_answers_what_the_cell_does(name: str) -> None:
    cell, player = Cell(2.8e6, 360e3, 0.12, 10), Player(5.0)
    answer = find_solver(name).solve(chain_of(cell), player)

    assert answer.stall_probability.value == pytest.approx(solve_cell(cell, player).stall_probability.value, rel=1e-9)
