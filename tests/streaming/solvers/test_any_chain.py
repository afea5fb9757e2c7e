"""Properties of the solvers on chains of any shape."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streaming.oracles import eigen_empties, with_phases
from streaming.random_chains import chains
from takeup.papers.qoe.riccati import RiccatiSolver
from takeup.streaming.model import Chain, Player
from takeup.streaming.solvers.diffusion import DiffusionSolver
from takeup.streaming.solvers.fluid import DoublingSolver
from takeup.streaming.solvers.transforms import startup_cdf

NAMES = ("startup_s", "stall_probability", "num_stalls", "stall_s", "finished_early", "gave_up")
THRESHOLDS = st.floats(0.01, 30.0)


@settings(max_examples=60, deadline=None)
@given(chain=chains(), buffer_s=THRESHOLDS)
def test_the_law_of_running_empty_is_that_of_the_eigenvectors(chain: Chain, buffer_s: float) -> None:
    found = DoublingSolver().solution(chain).playback.empties(buffer_s)

    assert found == pytest.approx(eigen_empties(chain, buffer_s), abs=1e-7)


@settings(max_examples=40, deadline=None)
@given(chain=chains(standing_still=True, impatient=True), start_s=THRESHOLDS, resume_s=THRESHOLDS)
def test_all_dense_solvers_give_one_answer(chain: Chain, start_s: float, resume_s: float) -> None:
    player = Player(start_s, resume_s)
    solvers = (RiccatiSolver(), DoublingSolver(), DiffusionSolver())
    answers = [solver.solve(chain, player) for solver in solvers]

    for name in NAMES:
        values = [getattr(answer, name).value for answer in answers]
        assert values == pytest.approx([values[0]] * len(solvers), rel=1e-7, abs=1e-10), name


@settings(max_examples=40, deadline=None)
@given(chain=chains(impatient=True), content_s=THRESHOLDS, more_s=THRESHOLDS)
def test_waits_add_up(chain: Chain, content_s: float, more_s: float) -> None:
    solution = DoublingSolver().solution(chain)
    first, second, whole = (solution.prefetch(x) for x in (content_s, more_s, content_s + more_s))

    assert whole.starts_in == pytest.approx(first.starts_in @ second.starts_in, abs=1e-10)
    assert whole.mean_s == pytest.approx(first.mean_s + first.starts_in @ second.mean_s, rel=1e-9)
    assert whole.starts_in.sum(axis=1) + whole.finished + whole.gave_up == pytest.approx(1.0)


@settings(max_examples=40, deadline=None)
@given(chain=chains(standing_still=True), start_s=THRESHOLDS, resume_s=THRESHOLDS)
def test_a_state_split_in_two_changes_nothing(chain: Chain, start_s: float, resume_s: float) -> None:
    player = Player(start_s, resume_s)
    num = chain.num_states
    jumps = chain.generator - np.diag(np.diag(chain.generator))
    rates = np.kron(jumps, np.full((2, 2), 0.5)) + np.kron(np.eye(num), np.array([[0.0, 0.3], [0.7, 0.0]]))
    np.fill_diagonal(rates, -rates.sum(axis=1))
    halves = Chain(rates, np.repeat(chain.end, 2), np.repeat(chain.fill, 2), np.repeat(chain.initial, 2) / 2)

    whole, split = (DoublingSolver().solve(each, player) for each in (chain, halves))
    assert halves.num_states == 2 * num
    for name in NAMES:
        assert getattr(split, name).value == pytest.approx(getattr(whole, name).value, rel=1e-8, abs=1e-11), name


@settings(max_examples=30, deadline=None)
@given(chain=chains(), start_s=THRESHOLDS, scale=st.floats(0.1, 10.0))
def test_seconds_may_be_counted_in_any_unit(chain: Chain, start_s: float, scale: float) -> None:
    """A clock of time and content that runs `scale` times as fast changes delays, and nothing else."""
    fast = replace(chain, generator=chain.generator * scale, end=chain.end * scale)
    slow, quick = (
        DoublingSolver().solve(chain, Player(start_s)),
        DoublingSolver().solve(fast, Player(start_s / scale)),
    )

    assert quick.stall_probability.value == pytest.approx(slow.stall_probability.value, rel=1e-8, abs=1e-12)
    assert quick.num_stalls.value == pytest.approx(slow.num_stalls.value, rel=1e-8, abs=1e-12)
    assert quick.startup_s.value * scale == pytest.approx(slow.startup_s.value, rel=1e-8)


@settings(max_examples=30, deadline=None)
@given(chain=chains(standing_still=True), start_s=THRESHOLDS, patience=st.floats(0.001, 1.0))
def test_impatience_shortens_waits_and_saves_stalls(chain: Chain, start_s: float, patience: float) -> None:
    impatient = replace(chain, give_up=np.full(chain.num_states, patience))
    before, after = (DoublingSolver().solve(each, Player(start_s)) for each in (chain, impatient))

    assert after.startup_s.value <= before.startup_s.value + 1e-9
    assert after.stall_probability.value <= before.stall_probability.value + 1e-12
    assert 0 < after.gave_up.value <= 1


@settings(max_examples=20, deadline=None)
@given(chain=chains(), start_s=THRESHOLDS, mean_s=st.floats(5.0, 100.0))
def test_one_phase_replaces_the_end_of_the_download(chain: Chain, start_s: float, mean_s: float) -> None:
    phased = with_phases(chain, np.ones(1), np.array([[-1 / mean_s]]))
    direct = replace(chain, end=chain.fill / mean_s)
    found, expected = (DoublingSolver().solve(each, Player(start_s)) for each in (phased, direct))

    assert found.finished_early.value == pytest.approx(1 - np.exp(-start_s / mean_s))
    assert found.stall_probability.value == pytest.approx(expected.stall_probability.value, rel=1e-9)


@settings(max_examples=10, deadline=None)
@given(chain=chains(), threshold_s=st.floats(0.5, 10.0))
def test_the_law_of_the_start_obeys_the_inequality_of_markov(chain: Chain, threshold_s: float) -> None:
    mean_s = DoublingSolver().solution(chain).answer(Player(threshold_s)).startup_s.value

    twice, tenfold = startup_cdf(chain, threshold_s, [2 * mean_s, 10 * mean_s])
    assert twice >= 0.5 - 1e-3  # Markov's inequality
    assert tenfold >= 0.9 - 1e-3
