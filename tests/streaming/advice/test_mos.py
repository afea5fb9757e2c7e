"""The opinion score: its anchor points, its shape, and the standard where it is installed."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streaming.oracles import ps_cell, reference_cell
from takeup.errors import BadInput
from takeup.streaming.advice.qoe import expected_mos, mean_mos, mos
from takeup.streaming.chains import chain_of
from takeup.streaming.model import Estimate, Player
from takeup.streaming.solvers.fluid import DoublingSolver


@pytest.mark.parametrize(
    ("startup_s", "num_stalls", "stall_s", "score"),
    [(0, 0, 0, 4.85), (3, 0, 0, 4.48), (10, 0, 0, 4.19), (3, 1, 5, 3.86), (3, 2, 10, 3.38), (3, 3, 15, 3.26)],
)
def test_the_score_is_near_its_anchor_points(startup_s: float, num_stalls: int, stall_s: float, score: float) -> None:
    assert mos(startup_s, num_stalls, stall_s) == pytest.approx(score, abs=0.06)


@given(startup_s=st.floats(0, 1e4), num_stalls=st.integers(0, 1000), stall_s=st.floats(0, 1e4))
def test_the_score_is_a_score_and_more_trouble_never_raises_it(
    startup_s: float, num_stalls: int, stall_s: float
) -> None:
    score = mos(startup_s, num_stalls, stall_s)

    assert 1 <= score <= 5
    assert mos(startup_s + 1, num_stalls, stall_s) <= score
    assert mos(startup_s, num_stalls + 1, stall_s) <= score
    assert mos(startup_s, num_stalls, stall_s + 1) <= score


def test_the_expected_score_of_a_cell_without_stalls_is_that_of_its_start() -> None:
    solution = DoublingSolver().solution(ps_cell(3.0, 60.0, 0.01, 2))
    startup_s = solution.answer(Player(4.0)).startup_s.value

    assert expected_mos(solution, Player(4.0)) == pytest.approx(mos(startup_s, 0, 0))


def test_the_expected_score_falls_with_the_load() -> None:
    scores = [
        expected_mos(DoublingSolver().solution(chain_of(reference_cell(rate))), Player(5.0))
        for rate in (0.05, 0.1, 0.2)
    ]

    assert scores == sorted(scores, reverse=True)


def test_stalls_count_by_their_law_each_as_long_as_the_mean_stall() -> None:
    answer = SimpleNamespace(startup_s=Estimate(1.0), stall_s=Estimate(6.0), num_stalls=Estimate(2.0))
    law = np.array([0.5, 0.3, 0.2])
    solution: Any = SimpleNamespace(answer=lambda player: answer, stall_law=lambda player, most: law)

    expected = 0.5 * mos(1.0, 0, 0.0) + 0.3 * mos(1.0, 1, 3.0) + 0.2 * mos(1.0, 2, 6.0)
    assert expected_mos(solution, Player(5.0)) == pytest.approx(expected)


def test_the_mean_session_has_the_score_of_its_means() -> None:
    answer = DoublingSolver().solution(chain_of(reference_cell(0.1))).answer(Player(5.0))

    assert mean_mos(answer) == mos(answer.startup_s.value, answer.num_stalls.value, answer.stall_s.value)


@pytest.mark.parametrize("startup_s", [-1.0, math.nan])
def test_a_session_that_cannot_be_is_refused(startup_s: float) -> None:
    with pytest.raises(BadInput, match="cannot be"):
        mos(startup_s, 0, 0)
