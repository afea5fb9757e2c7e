"""The first-order solver against known numbers, eigenvectors, an integrator of equations, and its own limits."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.integrate import solve_ivp

from streaming.oracles import eigen_empties, ps_cell, reference_cell
from takeup.errors import BadInput
from takeup.papers.qoe.riccati import RiccatiSolver
from takeup.streaming.chains import chain_of, with_abandonment
from takeup.streaming.model import Chain, Player
from takeup.streaming.solvers.fluid import DoublingSolver

SOLVER = RiccatiSolver()
THRESHOLDS = (0.5, 2.0, 5.0, 10.0, 20.0, 40.0)


@pytest.mark.parametrize(
    ("arrivals_per_s", "probabilities", "startups_s", "blocked_share"),
    [
        (0.08, (0.0230277, 0.0145335, 0.00677418, 0.00194942, 0.000161583, 1.11015e-06), (1.56121, 5.53502), 0.0030835),
        (0.10, (0.0903368, 0.0621451, 0.0326666, 0.0113374, 0.00136604, 1.98316e-05), (2.20100, 7.80328), 0.0181023),
        (0.12, (0.222639, 0.162858, 0.0936352, 0.0374947, 0.00601274, 0.000154625), (3.00350, 10.64838), 0.0599973),
    ],
)
def test_the_reference_cells_have_their_known_numbers(
    arrivals_per_s: float, probabilities: tuple[float, ...], startups_s: tuple[float, float], blocked_share: float
) -> None:
    chain = chain_of(reference_cell(arrivals_per_s))
    solution = SOLVER.solution(chain)

    assert [solution.stall_probability(q) for q in THRESHOLDS] == pytest.approx(probabilities, rel=1e-5)
    assert [solution.answer(Player(q)).startup_s.value for q in (5.0, 20.0)] == pytest.approx(startups_s, rel=1e-5)
    assert chain.blocked_share == pytest.approx(blocked_share, rel=1e-4)


def test_the_number_of_stalls_and_the_tails_have_their_known_values() -> None:
    solution = SOLVER.solution(chain_of(reference_cell()))
    means = [solution.counts(Player(q)).mean for q in THRESHOLDS[:5]]
    tails = [solution.stall_probability(q) for q in (60.0, 100.0, 150.0)]

    assert means == pytest.approx([2.19972, 0.480977, 0.146171, 0.0431941, 0.00612586], rel=1e-5)
    assert tails == pytest.approx([3.97635e-6, 2.62964e-9, 2.78876e-13], rel=1e-5)


@pytest.mark.parametrize(("start_s", "resume_s", "stall_s"), [(5, 5, 0.8497), (2, 5, 1.4748), (5, 2, 0.6690)])
def test_the_time_in_stalls_has_its_known_values(start_s: float, resume_s: float, stall_s: float) -> None:
    answer = SOLVER.solve(chain_of(reference_cell()), Player(start_s, resume_s))

    assert answer.stall_s.value == pytest.approx(stall_s, abs=5e-5)


@pytest.mark.parametrize("max_users", [2, 5, 9, 14, 20])
@pytest.mark.parametrize("speed", [2.3, 4.6, 7.78])
def test_schur_doubling_and_eigenvectors_agree(max_users: int, speed: float) -> None:
    chain = ps_cell(speed, 60.0, 0.1, max_users)
    schur, doubling = SOLVER.solution(chain).playback, DoublingSolver().solution(chain).playback

    for buffer_s in (0.0, 0.3, 4.0, 30.0):
        expected = eigen_empties(chain, buffer_s)
        assert schur.empties(buffer_s) == pytest.approx(expected, abs=1e-9)
        assert doubling.empties(buffer_s) == pytest.approx(expected, abs=1e-9)


def test_the_law_of_running_empty_solves_its_differential_equation() -> None:
    chain = chain_of(reference_cell())
    playback = SOLVER.solution(chain).playback
    start = playback.empties(0.0)[:, 0]
    flow = -chain.killed / (chain.fill - chain.drain)[:, None]
    reached = solve_ivp(lambda _, w: flow @ w, (0.0, 2.0), start, rtol=1e-11, atol=1e-13).y[:, -1]

    assert playback.empties(2.0)[:, 0] == pytest.approx(reached, abs=1e-7)


def test_the_wait_solves_its_differential_equation() -> None:
    chain = chain_of(reference_cell())
    waited = SOLVER.solution(chain).prefetch(5.0)

    def slope(_: float, mean_s: np.ndarray[tuple[int], np.dtype[np.float64]]) -> object:
        return (1 + chain.killed @ mean_s) / chain.fill

    expected = solve_ivp(slope, (0.0, 5.0), np.zeros(10), rtol=1e-11, atol=1e-13).y[:, -1]
    assert waited.mean_s == pytest.approx(expected, rel=1e-9)
    assert waited.finished == pytest.approx(1 - np.exp(-5 / 60), rel=1e-12)
    assert waited.starts_in.sum(axis=1) + waited.finished == pytest.approx(1.0)


def test_the_law_of_the_number_of_stalls_has_their_mean() -> None:
    counts = SOLVER.solution(chain_of(reference_cell())).counts(Player(2.0, 1.0))

    assert counts.law(60).sum() == pytest.approx(1.0)
    assert counts.mean == pytest.approx(sum(counts.at_least(n) for n in range(1, 400)), rel=1e-9)
    assert counts.at_least(0) == 1.0


def test_a_single_state_has_a_closed_form() -> None:
    slow = ps_cell(0.5, 60.0, 0.02, 1)
    answer = SOLVER.solve(slow, Player(5.0))
    falls = math.exp(-5 / 60) * math.exp(-0.5 / 60 * 5 / 0.5)

    assert answer.stall_probability.value == pytest.approx(falls, rel=1e-12)
    assert answer.num_stalls.value == pytest.approx(falls / (1 - falls), rel=1e-12)
    assert answer.startup_s.value == pytest.approx((1 - math.exp(-5 / 60)) * 60 / 0.5, rel=1e-12)


def test_one_user_at_a_time_with_enough_capacity_never_stalls() -> None:
    answer = SOLVER.solve(ps_cell(3.0, 60.0, 0.02, 1), Player(5.0))

    assert answer.stall_probability.value == answer.num_stalls.value == answer.stall_s.value == 0.0


@pytest.mark.parametrize("speed", [1, 2, 3, 5, 7])
def test_a_state_in_which_the_buffer_stands_still_is_the_limit_of_its_neighbours(speed: int) -> None:
    player = Player(5.0)

    exact = SOLVER.solve(ps_cell(float(speed), 60.0, 0.02 * speed, 10), player)
    near = [SOLVER.solve(ps_cell(speed * (1 + e), 60.0, 0.02 * speed, 10), player) for e in (-1e-7, 1e-7, 1e-5)]

    for answer, accuracy in zip(near, (1e-6, 1e-6, 1e-4), strict=True):
        assert answer.stall_probability.value == pytest.approx(exact.stall_probability.value, rel=accuracy)
        assert answer.num_stalls.value == pytest.approx(exact.num_stalls.value, rel=accuracy)


def test_a_player_that_resumes_at_once_stutters_without_end_but_loses_a_finite_time() -> None:
    solution = SOLVER.solution(chain_of(reference_cell()))
    stutters, nearly = solution.answer(Player(5.0, 0.0)), solution.answer(Player(5.0, 1e-6))

    assert stutters.num_stalls.value == math.inf
    assert stutters.stall_s.value == pytest.approx(nearly.stall_s.value, rel=1e-5)
    assert solution.answer(Player(0.0)).startup_s.value == 0.0


def test_a_threshold_beyond_every_video_means_no_stall_and_a_full_download_first() -> None:
    answer = SOLVER.solve(chain_of(reference_cell()), Player(1e5))

    assert answer.stall_probability.value == pytest.approx(0.0, abs=1e-12)
    assert answer.finished_early.value == pytest.approx(1.0)
    assert math.isfinite(answer.startup_s.value)


@pytest.mark.parametrize("seconds", [1e8, math.nan, -1.0])
def test_a_senseless_threshold_is_refused(seconds: float) -> None:
    with pytest.raises(BadInput, match="seconds of video from 0"):
        SOLVER.solution(chain_of(reference_cell())).prefetch(seconds)
    with pytest.raises(BadInput, match="seconds of video from 0"):
        SOLVER.solution(chain_of(reference_cell())).playback.empties(seconds)


def test_a_chain_whose_download_never_ends_still_has_an_answer() -> None:
    rates = np.array([[-1.0, 1.0], [3.0, -3.0]])  # mean drift 0.25 * 4 > 0: the buffer may never run empty
    endless = Chain(rates, np.zeros(2), np.array([3.0, 0.5]), np.array([0.5, 0.5]))
    law = SOLVER.solution(endless).playback.empties(1.0).sum(axis=1)

    expected = DoublingSolver().solution(endless).playback.empties(1.0).sum(axis=1)
    assert law == pytest.approx(expected, abs=1e-9)
    assert (law < 1).all()


def test_viewers_who_give_up_leave_waits_only_and_every_viewer_is_accounted_for() -> None:
    chain = chain_of(reference_cell())
    patient, impatient = SOLVER.solve(chain, Player(5.0)), SOLVER.solve(with_abandonment(chain, 0.1), Player(5.0))

    assert impatient.gave_up.value > 0.1
    assert impatient.startup_s.value < patient.startup_s.value
    assert impatient.num_stalls.value < patient.num_stalls.value
    assert patient.gave_up.value == 0.0


def test_giving_up_in_a_single_state_has_a_closed_form() -> None:
    slow = with_abandonment(ps_cell(0.5, 60.0, 0.02, 1), 0.1)
    answer = SOLVER.solve(slow, Player(5.0))
    wait = math.exp(-(0.1 + 0.5 / 60) * 10)  # 10 s of waiting, neither given up nor downloaded
    cycle = wait * math.exp(-5 / 60)
    leaves = (1 - wait) * 0.1 / (0.1 + 0.5 / 60)

    assert answer.stall_probability.value == pytest.approx(cycle, rel=1e-12)
    assert answer.gave_up.value == pytest.approx(leaves / (1 - cycle), rel=1e-12)


@pytest.mark.parametrize("start_s", [5e-324, 1e-18, 1e-12])
def test_a_threshold_of_next_to_nothing_is_a_stutter(start_s: float) -> None:
    solution = SOLVER.solution(chain_of(reference_cell()))
    found, stutter = solution.answer(Player(start_s)), solution.answer(Player(0.0))

    assert found.stall_s.value == pytest.approx(stutter.stall_s.value, rel=1e-6)
    assert found.num_stalls.value == stutter.num_stalls.value == math.inf


def test_an_impatient_stutterer_is_the_limit_of_small_resume_thresholds() -> None:
    solution = SOLVER.solution(with_abandonment(chain_of(reference_cell()), 0.3))

    exact, near = solution.answer(Player(5.0, 0.0)), solution.answer(Player(5.0, 1e-6))
    assert exact.gave_up.value == pytest.approx(near.gave_up.value, rel=1e-5)


@settings(max_examples=60, deadline=None)
@given(
    speed=st.floats(0.3, 20),
    load=st.floats(0.05, 3),
    max_users=st.integers(1, 15),
    start_s=st.floats(0, 60),
    resume_s=st.floats(0.01, 60),
)
def test_probabilities_stay_probabilities(
    speed: float, load: float, max_users: int, start_s: float, resume_s: float
) -> None:
    answer = SOLVER.solve(ps_cell(speed, 60.0, load * speed / 60, max_users), Player(start_s, resume_s))

    for share in (answer.stall_probability, answer.finished_early, answer.blocked_share, answer.gave_up):
        assert 0 <= share.value <= 1
    assert answer.num_stalls.value >= answer.stall_probability.value - 1e-12
    assert answer.stall_s.value >= 0


@settings(max_examples=40, deadline=None)
@given(
    speed=st.floats(1, 12),
    load=st.floats(0.1, 2),
    start_s=st.floats(0, 30),
    factor=st.floats(1.01, 2),
    max_users=st.integers(2, 12),
)
def test_stalls_fall_with_the_threshold_and_capacity_and_rise_with_arrivals(
    speed: float, load: float, start_s: float, factor: float, max_users: int
) -> None:
    rate = load * speed / 60
    base = SOLVER.solution(ps_cell(speed, 60.0, rate, max_users))
    here = base.stall_probability(start_s)
    faster = SOLVER.solution(ps_cell(speed * factor, 60.0, rate, max_users)).stall_probability(start_s)
    busier = SOLVER.solution(ps_cell(speed, 60.0, rate * factor, max_users)).stall_probability(start_s)

    assert base.stall_probability(start_s * factor) <= here + 1e-12
    assert faster <= here + 1e-12
    assert busier >= here - 1e-12
    assert base.answer(Player(start_s * factor)).startup_s.value >= base.answer(Player(start_s)).startup_s.value - 1e-12
