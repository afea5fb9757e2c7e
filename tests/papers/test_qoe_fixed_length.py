"""Videos of one length against known numbers, closed forms and the exponential law they add up to."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from streaming.oracles import phase_type, ps_cell, reference_cell
from takeup.errors import BadInput
from takeup.papers.qoe.fixed_length import fixed_length_stalls
from takeup.papers.qoe.riccati import RiccatiSolver
from takeup.streaming.chains import chain_of, with_abandonment
from takeup.streaming.model import Player
from takeup.streaming.numerics import invert_laplace


@pytest.mark.parametrize(
    ("length_s", "threshold_s", "expected"),
    [(60, 2, 0.209301), (60, 10, 0.034900), (300, 10, 0.164945), (30, 5, 0.057433), (60, 20, 0.0)],
)
def test_the_reference_cell_has_its_known_numbers(length_s: float, threshold_s: float, expected: float) -> None:
    share = fixed_length_stalls(chain_of(reference_cell()), length_s, threshold_s)

    assert share == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("length_s", [0.0, 4.0, 5.0])
def test_a_video_no_longer_than_the_threshold_never_stalls(length_s: float) -> None:
    assert fixed_length_stalls(chain_of(reference_cell()), length_s, 5.0) == 0.0


def test_a_single_state_stalls_from_one_length_on() -> None:
    slow = ps_cell(0.5, 60.0, 0.02, 1)  # 5 s take 10 s to fetch and 10 s to empty, during which 5 s more arrive
    shares = [fixed_length_stalls(slow, length_s, 5.0) for length_s in (9.0, 11.0, 39.0)]

    assert shares == pytest.approx([0, 1, 1], abs=1e-6)


def test_lengths_mixed_by_the_exponential_law_add_up_to_its_answer() -> None:
    chain = chain_of(reference_cell())
    falls = chain.fill[chain.fill < 1]
    jumps = 2.0 + 2.0 * falls / (1 - falls)
    edges = np.unique(np.concatenate([[2.0], jumps, [30.0, 120.0, 250.0, 500.0, 1000.0]]))
    nodes, weights = np.polynomial.legendre.leggauss(14)
    total = 0.0
    for low, high in pairwise(edges):
        for node, weight in zip(nodes, weights, strict=True):
            length_s = low + (high - low) * (node + 1) / 2
            share = fixed_length_stalls(chain, float(length_s), 2.0)
            total += weight * (high - low) / 2 * share * math.exp(-length_s / 60) / 60

    assert total == pytest.approx(RiccatiSolver().solution(chain).stall_probability(2.0), abs=1e-6)


def test_many_phases_come_close_to_one_length() -> None:
    num = 40
    rates = (np.eye(num, k=1) - np.eye(num)) * num / 60
    erlang = RiccatiSolver().solve(phase_type(reference_cell(), np.eye(num)[0], rates), Player(2.0))
    fixed = fixed_length_stalls(chain_of(reference_cell()), 60.0, 2.0)

    assert erlang.stall_probability.value == pytest.approx(fixed, rel=0.01)


def test_a_state_in_which_the_buffer_stands_still_is_the_limit_of_its_neighbours() -> None:
    exact, near = (fixed_length_stalls(ps_cell(c, 60.0, 0.06, 6), 90.0, 3.0) for c in (3.0, 3.0 + 3e-6))

    assert near == pytest.approx(exact, abs=1e-5)


def test_impatient_viewers_of_one_length_have_a_closed_form() -> None:
    slow = with_abandonment(ps_cell(0.5, 60.0, 0.02, 1), 0.1)

    assert fixed_length_stalls(slow, 13.0, 5.0) == pytest.approx(math.exp(-1.0), abs=1e-6)  # 10 s of waiting


def test_longer_videos_stall_more_up_to_the_share_of_endless_ones() -> None:
    chain = chain_of(reference_cell())
    shares = [fixed_length_stalls(chain, x, 5.0) for x in (20, 60, 200, 600, 1e5)]
    endless = RiccatiSolver().solution(replace(chain, end=np.zeros(10))).stall_probability(5.0)

    assert shares == sorted(shares)
    assert shares[-1] == pytest.approx(endless, abs=1e-6)


@pytest.mark.parametrize("length_s", [math.nan, -1.0, math.inf])
def test_a_senseless_length_is_refused(length_s: float) -> None:
    with pytest.raises(BadInput, match="length_s is"):
        fixed_length_stalls(chain_of(reference_cell()), length_s, 5.0)


def test_euler_summation_inverts_known_transforms() -> None:
    times = np.array([0.5, 1.0, 4.0])

    assert invert_laplace(lambda s: 1 / (s + 1), times) == pytest.approx(np.exp(-times), abs=1e-7)
    assert invert_laplace(lambda s: 1 / (s * s + 1), times) == pytest.approx(np.sin(times), abs=1e-7)
