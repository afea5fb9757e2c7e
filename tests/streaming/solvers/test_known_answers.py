"""Cells simple enough to be solved with pencil and paper, put to every solver and to the simulation.

A viewer alone in a state downloads b seconds of video per second, of a video that is m seconds long on average. Waiting
for q seconds of video takes q / b, and the download is still going on with probability exp(-q / m). Playing them takes
q / (1 - b) if b < 1, in which b q / (1 - b) more seconds of video must still come. So a threshold q leads to a stall
with probability

    F(q) = exp(-q / m) exp(-b q / (m (1 - b))) = exp(-q / (m (1 - b)))

and every stall is followed by another one with F(q) for the threshold of resuming.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.linalg import expm

from streaming.oracles import ps_cell
from takeup.core.arrays import Floats
from takeup.streaming.chains import chain_of
from takeup.streaming.model import Capacity, Cell, Player, QoeMetrics, Views
from takeup.streaming.simulate.tagged import play_tagged, simulate_tagged
from takeup.streaming.solvers.diffusion import DiffusionSolver
from takeup.streaming.solvers.fluid import DoublingSolver
from takeup.streaming.solvers.solution import ChainSolver
from takeup.streaming.solvers.sparse import SparseSolver

SOLVERS = (DoublingSolver(), DiffusionSolver(), SparseSolver())
EACH_SOLVER = pytest.mark.parametrize("solver", SOLVERS, ids=lambda solver: solver.name)
MEAN_S = 60.0
UP, DOWN, TO_DOWN, TO_UP = 2.5, 0.4, 0.05, 0.08  # fills of two levels, and the rates between them
FLICKER = Capacity(np.array([UP, DOWN]), np.array([[-TO_DOWN, TO_DOWN], [TO_UP, -TO_UP]]))


def stalls_alone(fill: float, threshold_s: float) -> float:
    """F(q) of the docstring above."""
    return math.exp(-threshold_s / (MEAN_S * (1 - fill)))


def waits_alone(fill: float, threshold_s: float) -> float:
    """The mean of an exponential download of mean m / b that is cut at q / b."""
    return MEAN_S / fill * (1 - math.exp(-threshold_s / MEAN_S))


def assert_simulated(answer: QoeMetrics, expected: dict[str, float]) -> None:
    for name, value in expected.items():
        found = getattr(answer, name)
        assert abs(found.value - value) < 4 * found.error, name


def slow_viewer(fill: float, start_s: float, resume_s: float) -> dict[str, float]:
    """All that a viewer alone with a fill below one experiences."""
    num_stalls = stalls_alone(fill, start_s) / (1 - stalls_alone(fill, resume_s))
    return {
        "startup_s": waits_alone(fill, start_s),
        "stall_probability": stalls_alone(fill, start_s),
        "num_stalls": num_stalls,
        "stall_s": num_stalls * waits_alone(fill, resume_s),
        "finished_early": 1 - math.exp(-start_s / MEAN_S),
    }


# One state ------------------------------------------------------------------------------------------------------------


@EACH_SOLVER
@pytest.mark.parametrize(("fill", "start_s", "resume_s"), [(0.25, 2.0, 9.0), (0.5, 10.0, 3.0), (0.95, 0.5, 0.2)])
def test_a_slow_link_of_ones_own_has_its_closed_form(
    solver: ChainSolver, fill: float, start_s: float, resume_s: float
) -> None:
    answer = solver.solve(ps_cell(fill, MEAN_S, 0.01, 1), Player(start_s, resume_s))

    for name, value in slow_viewer(fill, start_s, resume_s).items():
        assert getattr(answer, name).value == pytest.approx(value, rel=1e-9), name


def test_viewers_of_a_slow_link_live_through_the_closed_form() -> None:
    answer = simulate_tagged(ps_cell(0.5, MEAN_S, 0.01, 1), Player(10.0, 3.0), num_videos=100_000, seed=3)

    assert_simulated(answer, slow_viewer(0.5, 10.0, 3.0))


def test_the_number_of_stalls_on_a_slow_link_is_geometric_after_the_first() -> None:
    counts = DoublingSolver().solution(ps_cell(0.5, MEAN_S, 0.01, 1)).counts(Player(10.0, 3.0))
    first, again = stalls_alone(0.5, 10.0), stalls_alone(0.5, 3.0)

    assert [counts.at_least(n) for n in range(1, 6)] == pytest.approx([first * again**n for n in range(5)], rel=1e-9)


@EACH_SOLVER
@pytest.mark.parametrize(("fill", "start_s"), [(1.01, 0.5), (3.0, 20.0), (40.0, 200.0)])
def test_a_fast_link_of_ones_own_only_waits_at_the_start(solver: ChainSolver, fill: float, start_s: float) -> None:
    answer = solver.solve(ps_cell(fill, MEAN_S, 0.01, 1), Player(start_s))

    assert answer.startup_s.value == pytest.approx(waits_alone(fill, start_s), rel=1e-9)
    assert answer.finished_early.value == pytest.approx(1 - math.exp(-start_s / MEAN_S), rel=1e-9)
    assert answer.stall_probability.value == answer.num_stalls.value == answer.stall_s.value == 0.0


@pytest.mark.parametrize(("fill", "threshold_s", "length_s"), [(0.5, 5.0, 61.0), (0.8, 3.0, 14.0), (0.25, 4.0, 33.0)])
def test_a_video_of_fixed_length_stalls_at_places_known_beforehand(
    fill: float, threshold_s: float, length_s: float
) -> None:
    """The n-th stall comes when n q / (1 - b) seconds of video have arrived, and waits for q more or for the end."""
    places_s = np.arange(1, 100) * threshold_s / (1 - fill)
    places_s = places_s[places_s < length_s]
    lived = play_tagged(ps_cell(fill, MEAN_S, 0.01, 1), Player(threshold_s), num_videos=3, length_s=length_s)

    assert lived.num_stalls.tolist() == [len(places_s)] * 3
    assert lived.stall_s == pytest.approx(np.minimum(threshold_s, length_s - places_s).sum() / fill)
    assert lived.startup_s == pytest.approx(threshold_s / fill)


# Several users --------------------------------------------------------------------------------------------------------


@EACH_SOLVER
@pytest.mark.parametrize("fill", [0.5, 1.5])
def test_users_who_do_not_share_are_blocked_as_erlang_says_and_play_as_if_alone(
    solver: ChainSolver, fill: float
) -> None:
    """With as many channels as users nobody slows another down: M/M/K/K, whose blocking is Erlang's formula B."""
    offered, num_channels = 0.07 * MEAN_S / fill, 6
    terms = [offered**n / math.factorial(n) for n in range(num_channels + 1)]
    chain = ps_cell(fill, MEAN_S, 0.07, num_channels, efficiency=np.arange(1.0, num_channels + 1))
    answer = solver.solve(chain, Player(4.0))

    assert answer.blocked_share.value == pytest.approx(terms[-1] / sum(terms), rel=1e-9)
    assert answer.startup_s.value == pytest.approx(waits_alone(fill, 4.0), rel=1e-9)
    assert answer.stall_probability.value == pytest.approx(stalls_alone(fill, 4.0) if fill < 1 else 0.0, rel=1e-9)


def test_a_cell_in_another_unit_of_time_and_of_data_is_the_same_cell() -> None:
    """Seconds become minutes and bits become bytes: shares and numbers stay, times are divided by sixty."""
    by_minute = Capacity(FLICKER.levels, FLICKER.generator * 60)
    here = DoublingSolver().solve(chain_of(Cell(2.8e6, 360e3, 0.1, 8, capacity=FLICKER)), Player(6.0, 3.0))
    cell = Cell(2.8e6 / 8, 360e3 / 8, 0.1 * 60, 8, (Views(1.0, 1.0),), capacity=by_minute)
    there = DoublingSolver().solve(chain_of(cell), Player(0.1, 0.05))

    for name in ("stall_probability", "num_stalls", "finished_early", "blocked_share"):
        assert getattr(there, name).value == pytest.approx(getattr(here, name).value, rel=1e-8), name
    for name in ("startup_s", "stall_s"):
        assert getattr(there, name).value * 60 == pytest.approx(getattr(here, name).value, rel=1e-8), name


# Two levels -----------------------------------------------------------------------------------------------------------


def law_by_hand(arrivals_per_s: float) -> Floats:
    """Stationary law of (up idle, down idle, up busy, down busy): arrivals fill the place, downloads empty it."""
    ends = (UP / MEAN_S, DOWN / MEAN_S)
    rates = np.zeros((4, 4))
    rates[0, 2] = rates[1, 3] = arrivals_per_s
    rates[2, 0], rates[3, 1] = ends
    rates[0, 1] = rates[2, 3] = TO_DOWN
    rates[1, 0] = rates[3, 2] = TO_UP
    rates -= np.diag(rates.sum(axis=1))
    law: Floats = np.linalg.lstsq(np.vstack([rates.T, np.ones(4)]), np.array([0, 0, 0, 0, 1.0]), rcond=None)[0]
    return law


def stalls_by_hand(initial: Floats, threshold_s: float) -> float:
    """P(stall) of a lone viewer on two levels.

    The chance W of running empty from a buffer q obeys drift W' + T W = 0, so W = v exp(-x q) with T v = x drift v. As
    the drifts differ in sign the quadratic for x has one positive root, and v is one on the level that empties.
    """
    leave_up, leave_down = TO_DOWN + UP / MEAN_S, TO_UP + DOWN / MEAN_S
    drift_up, drift_down = UP - 1, DOWN - 1
    linear = leave_up * drift_down + leave_down * drift_up
    constant = leave_up * leave_down - TO_DOWN * TO_UP
    x = max(np.roots([drift_up * drift_down, linear, constant]).real)
    runs_empty = math.exp(-x * threshold_s) * np.array([TO_DOWN / (leave_up + x * drift_up), 1.0])
    per_content = np.array([[-leave_up, TO_DOWN], [TO_UP, -leave_down]]) / np.array([[UP], [DOWN]])
    return float(initial @ expm(per_content * threshold_s) @ runs_empty)


@EACH_SOLVER
@pytest.mark.parametrize("threshold_s", [0.0, 1.0, 8.0, 40.0])
def test_a_lone_viewer_on_a_flickering_link_stalls_as_the_quadratic_says(
    solver: ChainSolver, threshold_s: float
) -> None:
    law = law_by_hand(arrivals_per_s=0.03)
    chain = chain_of(Cell(1.0, 1.0, 0.03, 1, capacity=FLICKER))
    expected = stalls_by_hand(law[:2] / law[:2].sum(), threshold_s)

    assert solver.solve(chain, Player(threshold_s, 1.0)).stall_probability.value == pytest.approx(expected, rel=1e-8)
    assert chain.blocked_share == pytest.approx(law[2:].sum(), rel=1e-8)


def test_viewers_of_a_flickering_link_live_through_the_quadratic() -> None:
    law = law_by_hand(arrivals_per_s=0.03)
    chain = chain_of(Cell(1.0, 1.0, 0.03, 1, capacity=FLICKER))
    answer = simulate_tagged(chain, Player(8.0), num_videos=100_000, seed=4)

    assert_simulated(answer, {"stall_probability": stalls_by_hand(law[:2] / law[:2].sum(), 8.0)})
