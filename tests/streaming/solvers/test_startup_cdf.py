"""The law of the start-up delay: atoms, closed forms, its mean, its quantiles."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streaming.oracles import phase_type, ps_cell, reference_cell, with_phases
from takeup.errors import BadInput
from takeup.streaming.chains import chain_of, with_abandonment
from takeup.streaming.model import Capacity, Cell, Chain, Player
from takeup.streaming.solvers.fluid import DoublingSolver
from takeup.streaming.solvers.transforms import startup_atoms, startup_cdf


def mean_from(chain: Chain, threshold_s: float, last_s: float) -> float:
    """The integral of 1 - F, by panels between the atoms."""
    delays, _ = startup_atoms(chain, threshold_s)
    edges = np.unique(np.concatenate([[0.0], delays[delays < last_s], [last_s]]))
    nodes, weights = np.polynomial.legendre.leggauss(8)
    times = (edges[:-1, None] + np.diff(edges)[:, None] * (nodes + 1) / 2).ravel()
    shares = startup_cdf(chain, threshold_s, times)
    return float(((1 - shares) * np.repeat(np.diff(edges) / 2, 8) * np.tile(weights, len(edges) - 1)).sum())


@pytest.mark.parametrize("threshold_s", [2.0, 5.0, 20.0])
def test_the_law_has_the_mean_of_the_solver(threshold_s: float) -> None:
    chain = chain_of(reference_cell())
    expected = DoublingSolver().solution(chain).answer(Player(threshold_s)).startup_s.value

    assert mean_from(chain, threshold_s, 2 * threshold_s) == pytest.approx(expected, rel=1e-5)


def test_a_single_state_has_a_closed_form() -> None:
    chain = ps_cell(0.5, 60.0, 0.02, 1)
    times = np.array([-1.0, 0.0, 1.0, 9.9, 10.0, 11.0, math.inf])
    expected = np.where(times < 10, np.where(times > 0, 1 - np.exp(-0.5 / 60 * np.maximum(times, 0)), 0), 1.0)

    assert startup_cdf(chain, 5.0, times) == pytest.approx(expected, abs=1e-6)


def test_the_law_jumps_by_the_mass_of_each_atom() -> None:
    chain = chain_of(reference_cell())
    delays, masses = startup_atoms(chain, 5.0)
    around = startup_cdf(chain, 5.0, np.concatenate([delays - 1e-7, delays]))

    assert around[10:] - around[:10] == pytest.approx(masses, abs=1e-5)
    assert masses.max() > 0.1


def test_a_slow_simulation_draws_from_this_law() -> None:
    chain = ps_cell(3.0, 30.0, 0.2, 3)
    draws = np.random.default_rng(7)
    delays = np.array([_draw_delay(chain, 4.0, draws) for _ in range(4000)])
    times = np.linspace(0.5, 6.0, 12)

    found = startup_cdf(chain, 4.0, times)
    assert found == pytest.approx([(delays <= t).mean() for t in times], abs=0.03)


def _draw_delay(chain: Chain, content_s: float, draws: np.random.Generator) -> float:
    state, delay_s = int(draws.choice(chain.num_states, p=chain.initial)), 0.0
    while True:
        stay_s = draws.exponential(1 / -chain.killed[state, state])
        if stay_s * chain.fill[state] >= content_s:
            return float(delay_s + content_s / chain.fill[state])
        delay_s, content_s = delay_s + float(stay_s), content_s - stay_s * chain.fill[state]
        ways = np.append(np.maximum(chain.generator[state], 0.0), chain.end[state])
        state = int(draws.choice(len(ways), p=ways / ways.sum()))
        if state == chain.num_states:
            return float(delay_s)


def test_states_that_fill_alike_share_their_atom() -> None:
    phases = phase_type(reference_cell(), np.array([0.3, 0.7]), np.array([[-0.1, 0.08], [0.0, -0.02]]))
    plain = with_phases(chain_of(reference_cell()), np.ones(1), np.array([[-1e-12]]))
    times = np.array([0.6, 0.7, 2.0, 6.3, 6.5])
    changing = startup_cdf(
        with_phases(phases, np.array([1.0, 0.0]), np.array([[-1.0, 1.0], [0.0, -1e-12]])), 5.0, times
    )

    assert changing == pytest.approx(startup_cdf(plain, 5.0, times), abs=1e-5)


def test_an_outage_delays_the_start_but_everyone_starts() -> None:
    outage = Capacity(np.array([0.0, 2.0]), np.array([[-0.1, 0.1], [0.1, -0.1]]))
    chain = chain_of(Cell(2.8e6, 360e3, 0.05, 4, capacity=outage))
    early, late = startup_cdf(chain, 5.0, [2.0, 300.0])

    assert early < 0.6
    assert late == pytest.approx(1.0, abs=1e-6)


def test_no_threshold_is_no_delay() -> None:
    assert startup_cdf(chain_of(reference_cell()), 0.0, [-1.0, 0.0, 1.0]).tolist() == [0.0, 1.0, 1.0]


def test_a_viewer_that_gives_up_never_starts() -> None:
    chain = with_abandonment(chain_of(reference_cell()), 0.1)
    gave_up = DoublingSolver().solution(chain).prefetch(5.0).gave_up @ chain.initial

    assert startup_cdf(chain, 5.0, [1e4])[0] == pytest.approx(1 - gave_up, abs=1e-6)


@settings(max_examples=8, deadline=None)
@given(speed=st.floats(0.5, 10), load=st.floats(0.1, 2), threshold_s=st.floats(0.1, 30))
def test_the_law_rises_from_zero_to_one(speed: float, load: float, threshold_s: float) -> None:
    chain = ps_cell(speed, 60.0, load * speed / 60, 5)
    shares = startup_cdf(chain, threshold_s, np.linspace(0, 6 * threshold_s / speed, 12))

    assert (np.diff(shares) >= 0).all()
    assert shares[0] == 0
    assert shares[-1] == pytest.approx(1.0, abs=1e-6)


def test_a_time_that_is_no_number_is_refused() -> None:
    with pytest.raises(BadInput, match="times_s holds nan"):
        startup_cdf(chain_of(reference_cell()), 5.0, [math.nan])
