"""Doubling against the Schur form."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.linalg import expm

from streaming.oracles import ps_cell, reference_cell
from takeup.papers.qoe.riccati import RiccatiSolver, psi_by_schur
from takeup.streaming.chains import chain_of
from takeup.streaming.numerics import expm_many, expm_of_rates
from takeup.streaming.solvers.fluid import DoublingSolver, fluid_blocks, psi_by_doubling

NAMES = ("startup_s", "stall_probability", "num_stalls", "stall_s", "finished_early", "blocked_share")


@pytest.mark.parametrize("max_users", [2, 10, 40, 100])
def test_doubling_and_schur_find_the_same_law_of_coming_back(max_users: int) -> None:
    blocks, _ = fluid_blocks(ps_cell(max_users / 1.37, 60.0, 0.01 * max_users, max_users))

    assert psi_by_doubling(blocks) == pytest.approx(psi_by_schur(blocks), abs=1e-12)


def test_the_law_solves_the_riccati_equation() -> None:
    blocks, _ = fluid_blocks(chain_of(reference_cell()))
    psi = psi_by_doubling(blocks)

    residual = blocks.up_down + blocks.up @ psi + psi @ blocks.down + psi @ blocks.down_up @ psi
    assert np.abs(residual).max() < 1e-14


def test_tiny_probabilities_stay_positive() -> None:
    blocks, _ = fluid_blocks(ps_cell(100 / 1.37, 60.0, 0.01, 100))
    psi = psi_by_doubling(blocks)

    assert psi[0].max() < 1e-60
    assert (psi[:, 0] > 0).all()


def test_the_tail_agrees_with_the_schur_form_in_every_digit() -> None:
    chain = chain_of(reference_cell())

    for threshold_s in (60.0, 150.0, 300.0):
        tail = DoublingSolver().solution(chain).stall_probability(threshold_s)
        assert RiccatiSolver().solution(chain).stall_probability(threshold_s) == pytest.approx(tail, rel=1e-9)


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10_000), size=st.integers(1, 8), scale=st.floats(1e-3, 1e3))
def test_the_batched_exponential_is_the_exponential(seed: int, size: int, scale: float) -> None:
    draws = np.random.default_rng(seed).random((3, size, size)) * scale
    rates = draws.copy()
    rates[:, np.arange(size), np.arange(size)] = -draws.sum(axis=2)

    assert expm_of_rates(rates) == pytest.approx(expm(rates), rel=1e-8, abs=1e-11)
    assert (expm_of_rates(rates) >= 0).all()
    assert expm_many(rates * (1 + 0.3j)) == pytest.approx(expm(rates * (1 + 0.3j)), rel=1e-8, abs=1e-10)
