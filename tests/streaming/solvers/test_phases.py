"""The phases of a video and their transforms, on their own."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.linalg import expm

from streaming.oracles import ps_cell, reference_cell
from streaming.random_chains import chains
from takeup.papers.qoe.fixed_length import law_of_stalls
from takeup.streaming.chains import chain_of
from takeup.streaming.model import Chain
from takeup.streaming.solvers.fluid import DoublingSolver
from takeup.streaming.solvers.solution import WaitingPhase


def test_nothing_to_wait_for_is_no_wait() -> None:
    waited = WaitingPhase(chain_of(reference_cell())).until(0.0)

    assert waited.starts_in == pytest.approx(np.eye(10))
    assert np.stack([waited.mean_s, waited.finished, waited.gave_up]) == pytest.approx(0.0)


def test_play_starts_in_the_state_that_the_content_clock_gives() -> None:
    chain = chain_of(reference_cell())
    waited = WaitingPhase(chain).until(7.0)

    assert waited.starts_in == pytest.approx(expm(chain.killed / chain.fill[:, None] * 7.0), abs=1e-12)


def test_an_outage_costs_its_length_and_ends_in_a_state_that_fills() -> None:
    rates = np.array([[-0.5, 0.5], [0.1, -0.1]])
    chain = Chain(rates, np.zeros(2), np.array([1e-12, 2.0]), np.array([1.0, 0.0]))
    waited = WaitingPhase(chain).until(4.0)

    assert waited.starts_in == pytest.approx(np.array([[0.0, 1.0], [0.0, 1.0]]))
    assert waited.mean_s[1] == pytest.approx(2.0 + 2.0 * 0.1 / 0.5)  # 2 s of filling, 0.2 outages of 2 s
    assert waited.mean_s[0] == pytest.approx(2.0 + waited.mean_s[1])


@settings(max_examples=30, deadline=None)
@given(chain=chains(standing_still=True), buffer_s=st.floats(0.0, 20.0), rate=st.floats(0.01, 2.0))
def test_a_real_transform_is_a_chain_that_ends_sooner(chain: Chain, buffer_s: float, rate: float) -> None:
    stacked = (chain.killed - rate * np.eye(chain.num_states)).astype(np.complex128)[None]
    sooner = DoublingSolver().solution(replace(chain, end=chain.end + rate)).playback

    assert law_of_stalls(chain, stacked, buffer_s)[0] == pytest.approx(sooner.empties(buffer_s), abs=1e-9)


def test_a_complex_transform_is_the_conjugate_of_its_conjugate() -> None:
    chain = chain_of(reference_cell())
    nodes = np.array([0.3 + 2j, 0.3 - 2j], dtype=np.complex128)
    law = law_of_stalls(chain, chain.killed - nodes[:, None, None] * np.eye(10), 3.0)

    assert law[0] == pytest.approx(law[1].conj())
    assert np.abs(law[0]).max() <= 1.0 + 1e-12


def test_the_mean_time_to_a_stall_is_a_derivative_of_the_transform() -> None:
    chain = ps_cell(0.5, 60.0, 0.1, 1)
    nodes = np.array([1e-5, 2e-5], dtype=np.complex128)
    law = law_of_stalls(chain, chain.killed - nodes[:, None, None] * np.eye(1), 5.0)[:, 0, 0].real

    assert (law[0] - law[1]) / 1e-5 == pytest.approx(10 * math.exp(-10 * 0.5 / 60), rel=1e-3)


def test_the_slope_of_the_law_is_its_derivative() -> None:
    playback = DoublingSolver().solution(chain_of(reference_cell())).playback
    steps = (playback.empties(1e-6) - playback.empties(0.0)) / 1e-6

    assert playback.lift @ playback.records == pytest.approx(steps, rel=1e-3, abs=1e-6)
