"""The sparse solver compared with the dense one, on chains that both can solve."""

from __future__ import annotations

import math
from dataclasses import fields, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from takeup.errors import BadInput
from takeup.streaming.chains import chain_of, with_abandonment, with_vbr
from takeup.streaming.model import Cell, Chain, Estimate, Player, QoeMetrics, Views
from takeup.streaming.solvers.fluid import DoublingSolver
from takeup.streaming.solvers.sparse import SparseSolver

THREE = (Views(0.5, 30.0), Views(0.3, 60.0), Views(0.2, 150.0))
CELL = Cell(2.8e6, 360e3, 0.1, 8, THREE)


def agree(found: QoeMetrics, expected: QoeMetrics, accuracy: float) -> bool:
    pairs = [(getattr(found, item.name), getattr(expected, item.name)) for item in fields(QoeMetrics)]
    estimates = [(one.value, two.value) for one, two in pairs if isinstance(one, Estimate)]
    return all(one == pytest.approx(two, rel=accuracy, abs=1e-11) for one, two in estimates)


@pytest.mark.parametrize("tagged", [0, 1, 2])
@pytest.mark.parametrize("player", [Player(5.0), Player(2.0, 0.5), Player(30.0, 4.0), Player(5.0, goal_s=12.0)])
def test_three_classes_are_solved_as_by_doubling(tagged: int, player: Player) -> None:
    chain = chain_of(CELL, tagged)

    assert agree(SparseSolver().solve(chain, player), DoublingSolver().solve(chain, player), 1e-8)


@settings(max_examples=25, deadline=None)
@given(
    speed=st.floats(0.3, 20),
    load=st.floats(0.05, 3),
    max_users=st.integers(1, 40),
    start_s=st.floats(0.1, 60),
    resume_s=st.floats(0.1, 60),
)
def test_a_cell_of_any_size_and_load_is_solved_as_by_doubling(
    speed: float, load: float, max_users: int, start_s: float, resume_s: float
) -> None:
    chain, player = chain_of(Cell(speed, 1.0, load * speed / 60, max_users)), Player(start_s, resume_s)

    assert agree(SparseSolver().solve(chain, player), DoublingSolver().solve(chain, player), 1e-6)


@pytest.mark.parametrize("speed", [3.0, 7.0, 7.0 * (1 + 1e-9)])
def test_a_buffer_that_nearly_stands_still_costs_few_digits(speed: float) -> None:
    chain = chain_of(Cell(speed, 1.0, 0.1, 12, THREE))

    assert agree(SparseSolver().solve(chain, Player(5.0)), DoublingSolver().solve(chain, Player(5.0)), 1e-6)


def test_curves_and_the_law_of_the_number_of_stalls_are_those_of_doubling() -> None:
    chain, player = chain_of(CELL), Player(2.0, 1.0)
    found, expected = SparseSolver().solution(chain), DoublingSolver().solution(chain)

    assert found.stall_law(player, 30) == pytest.approx(expected.stall_law(player, 30), abs=1e-12)
    assert found.stall_curve(2.0, 8) == pytest.approx(expected.stall_curve(2.0, 8), abs=1e-12)
    assert found.stall_curve(2.0, 4, 9.0) == pytest.approx(expected.stall_curve(2.0, 4, 9.0), abs=1e-12)


def test_buffers_that_always_or_never_fall_need_no_law_of_coming_back() -> None:
    for speed in (0.5, 9.0):
        chain = chain_of(Cell(speed, 1.0, 0.01, 8))

        assert agree(SparseSolver().solve(chain, Player(5.0)), DoublingSolver().solve(chain, Player(5.0)), 1e-8)


def test_a_player_that_resumes_at_once_stalls_without_end() -> None:
    assert SparseSolver().solve(chain_of(CELL), Player(5.0, 0.0)).num_stalls.value == math.inf


@pytest.mark.parametrize("chain", [with_vbr(chain_of(CELL), 0.3, 1.0), with_abandonment(chain_of(CELL), 0.1)])
def test_what_it_does_not_solve_is_refused(chain: Chain) -> None:
    with pytest.raises(BadInput, match="is not solved by sparse matrices"):
        SparseSolver().solution(chain)


def test_every_threshold_of_a_thousand_users_is_a_probability() -> None:
    solution = SparseSolver().solution(chain_of(Cell(84e6, 360e3, 3.8, 1000)))
    curve = solution.stall_curve(1.0, 12)

    assert (np.diff(curve) <= 0).all()
    assert 0 < curve[-1] < curve[0] < 1
    assert replace(solution.answer(Player(3.0)), source="").stall_probability.value == pytest.approx(curve[3], rel=1e-8)
