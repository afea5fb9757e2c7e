"""Lengths of any phase type, variable bit rate and impatience, put on top of a chain."""

from __future__ import annotations

import math

import numpy as np
import pytest

from streaming.oracles import phase_type, reference_cell, with_phases
from takeup.errors import BadInput
from takeup.streaming.chains import chain_of, with_abandonment, with_vbr
from takeup.streaming.model import Cell, Player
from takeup.streaming.solvers.fluid import DoublingSolver

SOLVER = DoublingSolver()


def test_one_phase_is_the_exponential_length() -> None:
    expected = chain_of(reference_cell())
    found = phase_type(reference_cell(), np.ones(1), np.array([[-1 / 60]]))

    assert found.generator == pytest.approx(expected.generator)
    assert found.end == pytest.approx(expected.end)
    assert found.initial == pytest.approx(expected.initial)
    assert found.blocked_share == expected.blocked_share


def test_two_phases_side_by_side_are_the_mean_of_two_exponential_lengths() -> None:
    mixed = phase_type(reference_cell(), np.array([0.3, 0.7]), np.diag([-1 / 20, -1 / 90]))
    alone = [phase_type(reference_cell(), np.ones(1), np.array([[-1 / mean_s]])) for mean_s in (20, 90)]
    answers = [SOLVER.solve(chain, Player(5.0, 2.0)) for chain in (mixed, *alone)]

    for name in ("stall_probability", "num_stalls", "stall_s", "startup_s", "finished_early"):
        whole, short, long = (getattr(answer, name).value for answer in answers)
        assert whole == pytest.approx(0.3 * short + 0.7 * long, rel=1e-9), name


def test_phases_one_after_the_other_conserve_probability() -> None:
    rates = np.array([[-0.1, 0.1, 0.0], [0.0, -0.2, 0.2], [0.0, 0.0, -0.3]])
    chain = phase_type(reference_cell(max_users=4), np.array([1.0, 0.0, 0.0]), rates)

    assert chain.num_states == 12
    assert np.abs(chain.generator.sum(axis=1)).max() < 1e-12
    assert SOLVER.solution(chain).prefetch(1e4).finished == pytest.approx(1.0)


def test_phases_keep_scatter_and_impatience() -> None:
    base = with_abandonment(with_vbr(chain_of(reference_cell()), 0.5, 1.0), 0.1)
    chain = with_phases(base, np.array([0.5, 0.5]), np.diag([-0.1, -0.2]))

    assert chain.variance == pytest.approx(0.25)
    assert chain.give_up == pytest.approx(0.1)


def test_scatter_of_fading_and_bit_rate_adds_up() -> None:
    chain = chain_of(Cell(3.0, 1.0, 0.1, 4, opportunistic=True))

    assert with_vbr(chain, 0.2, 3.0).variance == pytest.approx(chain.variance + 0.12)


@pytest.mark.parametrize(("cv", "gop_s"), [(-1.0, 1.0), (math.nan, 1.0), (0.1, math.inf)])
def test_a_senseless_variable_bit_rate_is_refused(cv: float, gop_s: float) -> None:
    with pytest.raises(BadInput, match="cv is"):
        with_vbr(chain_of(reference_cell()), cv, gop_s)


@pytest.mark.parametrize("per_s", [-1.0, math.nan, math.inf])
def test_a_senseless_impatience_is_refused(per_s: float) -> None:
    with pytest.raises(BadInput, match="giving up"):
        with_abandonment(chain_of(reference_cell()), per_s)
