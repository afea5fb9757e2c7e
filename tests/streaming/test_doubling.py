"""Doubling, alone and in batches, against the Schur form."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.linalg import expm
from takeup.streaming.policies.many import solve_many

from streaming.oracles import reference_cell
from takeup.errors import BadInput
from takeup.streaming.chains import chain_of, ps_cell, ps_cells, stack, with_vbr
from takeup.streaming.model import Player
from takeup.streaming.policies.doubling import DoublingSolver, fluid_blocks, psi_by_doubling
from takeup.streaming.policies.exponential import expm_many, expm_of_rates
from takeup.streaming.policies.riccati import RiccatiSolver, psi_by_schur

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


def test_a_batch_gives_the_answers_of_its_members() -> None:
    speeds, arrivals = np.meshgrid([0.8, 3.0, 4.7, 7.78, 12.0], [0.02, 0.1, 0.3])
    batch = ps_cells(speeds, 60.0, arrivals, 8)
    start_s = np.linspace(0.0, 20.0, len(batch))
    answers = solve_many(batch, start_s, 3.0)

    for place, threshold_s in enumerate(start_s):
        alone = RiccatiSolver().solve(batch[place], Player(float(threshold_s), 3.0))
        for name in NAMES:
            assert getattr(answers, name)[place] == pytest.approx(getattr(alone, name).value, rel=1e-9, abs=1e-12), name


def test_a_batch_of_equal_thresholds_resumes_at_the_start_threshold() -> None:
    chains = [chain_of(reference_cell(rate)) for rate in (0.08, 0.12)]
    answers = solve_many(stack(chains), 5.0)

    assert answers.num_stalls[1] == pytest.approx(0.1461707, rel=1e-6)
    assert answers.stall_probability == pytest.approx([0.00677418, 0.0936352], rel=1e-5)


def test_a_batch_may_hold_cells_that_never_stall() -> None:
    answers = solve_many(ps_cells([30.0, 40.0], 60.0, 0.1, 5), 2.0)

    assert answers.stall_probability.tolist() == answers.num_stalls.tolist() == [0.0, 0.0]


@pytest.mark.parametrize("start_s", [math.nan, -1.0, 1e9])
def test_a_batch_refuses_senseless_thresholds(start_s: float) -> None:
    with pytest.raises(BadInput, match="start_s holds values outside"):
        solve_many(ps_cells(3.0, 60.0, 0.1, 5), start_s)


def test_a_batch_refuses_chains_it_would_get_wrong() -> None:
    chain = chain_of(reference_cell())

    with pytest.raises(BadInput, match="without variance"):
        stack([with_vbr(chain, 0.5, 1.0)])
    with pytest.raises(BadInput, match="same number of states"):
        stack([chain, chain_of(reference_cell(max_users=4))])


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10_000), size=st.integers(1, 8), scale=st.floats(1e-3, 1e3))
def test_the_batched_exponential_is_the_exponential(seed: int, size: int, scale: float) -> None:
    draws = np.random.default_rng(seed).random((3, size, size)) * scale
    rates = draws.copy()
    rates[:, np.arange(size), np.arange(size)] = -draws.sum(axis=2)

    assert expm_of_rates(rates) == pytest.approx(expm(rates), rel=1e-8, abs=1e-11)
    assert (expm_of_rates(rates) >= 0).all()
    assert expm_many(rates * (1 + 0.3j)) == pytest.approx(expm(rates * (1 + 0.3j)), rel=1e-8, abs=1e-10)
