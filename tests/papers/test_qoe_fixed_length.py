"""Videos of one length against known numbers, closed forms and the exponential law they add up to."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from streaming.oracles import phase_type, reference_cell
from takeup.errors import BadInput
from takeup.papers.qoe.fixed_length import FixedLengthSolver
from takeup.streaming.chains import chain_of, ps_cell, with_abandonment
from takeup.streaming.model import Player
from takeup.streaming.numerics import invert_laplace
from takeup.streaming.solvers.fluid import RiccatiSolver


@pytest.mark.parametrize(
    ("length_s", "threshold_s", "expected"),
    [(60, 2, 0.209301), (60, 10, 0.034900), (300, 10, 0.164945), (30, 5, 0.057433), (60, 20, 0.0)],
)
def test_the_reference_cell_has_its_known_numbers(length_s: float, threshold_s: float, expected: float) -> None:
    answer = FixedLengthSolver(length_s).solve(chain_of(reference_cell()), Player(threshold_s))

    assert answer.stall_probability.value == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("length_s", [0.0, 4.0, 5.0])
def test_a_video_no_longer_than_the_threshold_never_stalls(length_s: float) -> None:
    chain = chain_of(reference_cell())
    answer = FixedLengthSolver(length_s).solve(chain, Player(5.0))

    assert answer.stall_probability.value == answer.num_stalls.value == answer.stall_s.value == 0.0
    assert answer.finished_early.value == pytest.approx(1.0)
    assert answer.startup_s.value <= FixedLengthSolver(60.0).solve(chain, Player(5.0)).startup_s.value


def test_a_single_state_counts_its_stalls_exactly() -> None:
    slow = ps_cell(0.5, 60.0, 0.02, 1)  # 5 s take 10 s to fetch and 10 s to empty, during which 5 s more arrive
    answers = [FixedLengthSolver(length_s).solve(slow, Player(5.0)) for length_s in (9.0, 11.0, 21.0, 39.0)]

    assert [answer.num_stalls.value for answer in answers] == pytest.approx([0, 1, 2, 3], abs=1e-5)
    assert [answer.stall_probability.value for answer in answers] == pytest.approx([0, 1, 1, 1], abs=1e-6)
    assert [answer.stall_s.value for answer in answers] == pytest.approx([0, 2, 12, 30], abs=0.02)
    assert [answer.startup_s.value for answer in answers] == pytest.approx([10.0] * 4)


def test_lengths_mixed_by_the_exponential_law_add_up_to_its_answer() -> None:
    chain, player = chain_of(reference_cell()), Player(2.0)
    falls = chain.fill[chain.fill < 1]
    jumps = 2.0 + 2.0 * falls / (1 - falls)
    edges = np.unique(np.concatenate([[2.0], jumps, [30.0, 120.0, 250.0, 500.0, 1000.0]]))
    nodes, weights = np.polynomial.legendre.leggauss(14)
    total = 0.0
    for low, high in pairwise(edges):
        for node, weight in zip(nodes, weights, strict=True):
            length_s = low + (high - low) * (node + 1) / 2
            share = FixedLengthSolver(float(length_s)).solve(chain, player).stall_probability.value
            total += weight * (high - low) / 2 * share * math.exp(-length_s / 60) / 60

    assert total == pytest.approx(RiccatiSolver().solution(chain).stall_probability(2.0), abs=1e-6)


def test_many_phases_come_close_to_one_length() -> None:
    num = 40
    rates = (np.eye(num, k=1) - np.eye(num)) * num / 60
    erlang = RiccatiSolver().solve(phase_type(reference_cell(), np.eye(num)[0], rates), Player(2.0))
    fixed = FixedLengthSolver(60.0).solve(chain_of(reference_cell()), Player(2.0))

    assert erlang.stall_probability.value == pytest.approx(fixed.stall_probability.value, rel=0.01)
    assert erlang.num_stalls.value == pytest.approx(fixed.num_stalls.value, rel=0.02)
    assert erlang.stall_s.value == pytest.approx(fixed.stall_s.value, rel=0.02)
    assert erlang.startup_s.value == pytest.approx(fixed.startup_s.value, rel=0.01)


def test_a_state_in_which_the_buffer_stands_still_is_the_limit_of_its_neighbours() -> None:
    exact, near = (FixedLengthSolver(90.0).solve(ps_cell(c, 60.0, 0.06, 6), Player(3.0)) for c in (3.0, 3.0 + 3e-6))

    assert near.stall_probability.value == pytest.approx(exact.stall_probability.value, abs=1e-5)


def test_impatient_viewers_of_one_length_have_a_closed_form() -> None:
    slow = with_abandonment(ps_cell(0.5, 60.0, 0.02, 1), 0.1)
    answer = FixedLengthSolver(13.0).solve(slow, Player(5.0))  # 10 s of waiting, then 3 s left cost 6 s in the stall

    assert answer.stall_probability.value == pytest.approx(math.exp(-1.0), abs=1e-6)
    assert answer.gave_up.value == pytest.approx(1 - math.exp(-1.6), abs=2e-3)


def test_longer_videos_stall_more_up_to_the_share_of_endless_ones() -> None:
    chain = chain_of(reference_cell())
    shares = [FixedLengthSolver(x).solve(chain, Player(5.0)).stall_probability.value for x in (20, 60, 200, 600, 1e5)]
    endless = RiccatiSolver().solution(replace(chain, end=np.zeros(10))).stall_probability(5.0)

    assert shares == sorted(shares)
    assert shares[-1] == pytest.approx(endless, abs=1e-6)


@pytest.mark.parametrize("length_s", [math.nan, -1.0, math.inf])
def test_a_senseless_length_is_refused(length_s: float) -> None:
    with pytest.raises(BadInput, match="length_s is"):
        FixedLengthSolver(length_s)


def test_resuming_at_once_is_refused() -> None:
    with pytest.raises(BadInput, match="resume_s is 0"):
        FixedLengthSolver(60.0).solve(chain_of(reference_cell()), Player(5.0, 0.0))


def test_euler_summation_inverts_known_transforms() -> None:
    times = np.array([0.5, 1.0, 4.0])

    assert invert_laplace(lambda s: 1 / (s + 1), times) == pytest.approx(np.exp(-times), abs=1e-7)
    assert invert_laplace(lambda s: 1 / (s * s + 1), times) == pytest.approx(np.sin(times), abs=1e-7)
