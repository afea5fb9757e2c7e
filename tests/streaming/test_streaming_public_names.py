"""The names that `takeup.streaming` offers are what their modules hold, and are enough to ask a question."""

from __future__ import annotations

from importlib import import_module

import pytest

import takeup.streaming
from takeup.streaming import POLICIES, Cell, Player, chain_of, find_solver, solve_cell


def home_of(name: str) -> str:
    return next(home for home, names in takeup.streaming._HOMES.items() if name in names)


def test_every_public_name_has_one_home() -> None:
    homes = [name for names in takeup.streaming._HOMES.values() for name in names]

    assert sorted(homes) == sorted(takeup.streaming.__all__)
    assert dir(takeup.streaming) == sorted(takeup.streaming.__all__)


@pytest.mark.parametrize("name", takeup.streaming.__all__)
def test_a_public_name_is_what_its_module_holds(name: str) -> None:
    module = import_module(f"takeup.streaming.{home_of(name)}")

    assert getattr(takeup.streaming, name) is getattr(module, name)


@pytest.mark.parametrize("name", POLICIES)
def test_every_solver_by_name_answers_what_the_cell_does(name: str) -> None:
    cell, player = Cell(2.8e6, 360e3, 0.12, 10), Player(5.0)
    answer = find_solver(name).solve(chain_of(cell), player)

    assert answer.stall_probability.value == pytest.approx(solve_cell(cell, player).stall_probability.value, rel=1e-9)
