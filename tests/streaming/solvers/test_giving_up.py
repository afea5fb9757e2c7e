"""Impatient viewers in whole cells: against equations where they are alone, and by their effect on others."""

from __future__ import annotations

import numpy as np
import pytest

from streaming.oracles import reference_cell
from takeup.errors import BadInput
from takeup.papers.qoe.riccati import RiccatiSolver
from takeup.streaming.advice.qoe import ImpatientCell, solve_cell
from takeup.streaming.chains import chain_of, with_abandonment
from takeup.streaming.model import Cell, Player, QoeMetrics, Views
from takeup.streaming.simulate.cell import play_cell, simulate_cell
from takeup.streaming.solvers.fluid import DoublingSolver

NAMES = ("startup_s", "stall_probability", "num_stalls", "stall_s", "finished_early", "gave_up")
PLAYER = Player(3.0, 5.0)


def z_scores(found: QoeMetrics, exact: QoeMetrics) -> dict[str, float]:
    return {
        name: (getattr(found, name).value - getattr(exact, name).value) / getattr(found, name).error for name in NAMES
    }


def exact(cell: Cell, per_s: float) -> QoeMetrics:
    return DoublingSolver().solve(with_abandonment(chain_of(cell), per_s), PLAYER)


@pytest.mark.parametrize("per_s", [0.02, 0.2])
def test_a_viewer_alone_gives_up_as_often_as_computed(per_s: float) -> None:
    cell = Cell(0.8, 1.0, 0.01, max_users=1)
    found = simulate_cell(cell, PLAYER, num_videos=100_000, seed=2, give_up_per_s=per_s)

    assert max(map(abs, z_scores(found, exact(cell, per_s)).values())) <= 3.5
    assert found.gave_up.value > 0.02


def test_those_who_leave_make_room_for_the_others() -> None:
    cell = Cell(5.0, 1.0, 0.15, max_users=10)
    patient, impatient = (simulate_cell(cell, PLAYER, num_videos=50_000, give_up_per_s=per_s) for per_s in (0.0, 0.05))

    assert impatient.blocked_share.value < 0.7 * patient.blocked_share.value
    assert impatient.stall_probability.value < 0.9 * patient.stall_probability.value
    assert patient.gave_up.value == 0.0


def test_who_gives_up_has_not_been_downloaded_early() -> None:
    cell = Cell(2.0, 1.0, 0.1, max_users=10)
    lived = play_cell(cell, PLAYER, num_videos=5_000, give_up_per_s=0.1).records

    assert 0.1 < lived.gave_up.mean() < 0.9
    assert lived.finished_early.any()
    assert not (lived.gave_up & lived.finished_early).any()


def test_endless_patience_changes_nothing() -> None:
    cell = Cell(5.0, 1.0, 0.12, max_users=10)
    plain, patient = (play_cell(cell, PLAYER, num_videos=5_000, give_up_per_s=rate).records for rate in (0.0, 1e-300))

    assert all(np.array_equal(one, other) for one, other in zip(plain, patient, strict=True))


@pytest.mark.parametrize("per_s", [-0.1, float("nan"), float("inf")])
def test_a_senseless_rate_of_giving_up_is_refused(per_s: float) -> None:
    with pytest.raises(BadInput, match="the rate of giving up is"):
        play_cell(Cell(5.0, 1.0, 0.12, 10), PLAYER, num_videos=100, give_up_per_s=per_s)


# All viewers of a cell ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("arrivals_per_s", "give_up_per_s", "start_s"), [(0.12, 0.02, 5.0), (0.3, 0.1, 2.0)])
def test_a_cell_of_impatient_viewers_is_near_its_simulation(
    arrivals_per_s: float, give_up_per_s: float, start_s: float
) -> None:
    cell, player = reference_cell(arrivals_per_s), Player(start_s)
    found = ImpatientCell(cell, give_up_per_s).answer(player)
    lived = simulate_cell(cell, player, num_videos=40_000, seed=3, give_up_per_s=give_up_per_s)

    for name in ("stall_probability", "startup_s", "blocked_share", "gave_up"):
        expected = getattr(lived, name)
        assert getattr(found, name).value == pytest.approx(expected.value, rel=0.06, abs=4 * expected.error)


def test_viewers_that_never_give_up_are_the_plain_cell() -> None:
    found = ImpatientCell(reference_cell(), 0.0).answer(Player(5.0))

    assert found == solve_cell(reference_cell(), Player(5.0))


def test_the_time_of_a_download_is_waited_or_played() -> None:
    solution = RiccatiSolver().solution(chain_of(reference_cell()))
    late, soon = (solution.waiting_share(Player(start_s)) for start_s in (30.0, 0.5))

    assert (soon >= 0).all()
    assert (late <= 1 + 1e-12).all()
    assert (late > soon).all()


def test_impatience_with_classes_of_videos_is_refused() -> None:
    cell = Cell(2.8e6, 360e3, 0.12, 4, views=(Views(0.7, 20.0), Views(0.3, 150.0)))

    with pytest.raises(BadInput, match="one class of videos at a constant capacity"):
        ImpatientCell(cell, 0.1).answer(Player(5.0))
