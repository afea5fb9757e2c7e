"""What cells, players, chains and answers accept, refuse and derive."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest

from streaming.oracles import ps_cell, reference_cell
from takeup.errors import BadInput
from takeup.streaming.model import Capacity, Cell, Chain, Estimate, Player, QoeMetrics, Views


def test_a_cell_knows_its_speed_and_load() -> None:
    cell = Cell(2.8e6, 360e3, 0.12, 10, (Views(0.5, 20.0), Views(0.5, 100.0)))

    assert cell.speed == pytest.approx(7.7778, rel=1e-5)
    assert cell.mean_video_s == 60.0
    assert cell.load == pytest.approx(0.9257, rel=1e-4)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("capacity_bps", math.nan, "capacity_bps is nan"),
        ("bitrate_bps", 0.0, "bitrate_bps is 0"),
        ("arrivals_per_s", math.inf, "arrivals_per_s is inf"),
        ("max_users", 0, "at least one user"),
        ("views", (), "class of views"),
        ("views", (Views(1.0, math.inf),), "class of views"),
        ("views", (Views(0.5, 60.0),), "add up to 0.5"),
    ],
)
def test_a_senseless_cell_is_refused(field: str, value: object, message: str) -> None:
    with pytest.raises(BadInput, match=message):
        replace(reference_cell(), **{field: value})  # type: ignore[arg-type]


@pytest.mark.parametrize(("start_s", "resume_s"), [(-1.0, None), (math.nan, 1.0), (1.0, math.inf)])
def test_a_senseless_player_is_refused(start_s: float, resume_s: float | None) -> None:
    with pytest.raises(BadInput, match="finite number of seconds"):
        Player(start_s, resume_s)


def test_a_player_resumes_where_it_starts_unless_told() -> None:
    assert Player(5.0).again_s == 5.0
    assert Player(5.0, 0.0).again_s == 0.0


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("fill", np.ones(2), "needs 2 x 2 rates"),
        ("fill", np.zeros(3), "fill and drain rates must be above zero"),
        ("drain", np.zeros(3), "fill and drain rates must be above zero"),
        ("end", np.full(3, -1.0), "zero or more"),
        ("variance", np.full(3, -1.0), "zero or more"),
        ("give_up", np.full(3, -1.0), "zero or more"),
        ("give_up", np.zeros(2), "vectors of 3"),
        ("generator", np.full((3, 3), math.nan), "finite numbers only"),
        ("generator", np.ones((3, 3)), "rows that sum to zero"),
        ("generator", np.array([[1.0, -1.0, 0.0], [0, 0, 0], [0, 0, 0]]), "zero or more"),
        ("initial", np.full(3, 0.5), "sums to 1.5"),
    ],
)
def test_a_senseless_chain_is_refused(field: str, value: object, message: str) -> None:
    with pytest.raises(BadInput, match=message):
        replace(ps_cell(3.0, 60.0, 0.1, 3), **{field: value})  # type: ignore[arg-type]


def test_a_chain_without_states_is_refused() -> None:
    with pytest.raises(BadInput, match="no states"):
        Chain(np.zeros((0, 0)), np.zeros(0), np.zeros(0), np.zeros(0))


def test_a_chain_plays_one_second_per_second_without_scatter_for_patient_viewers() -> None:
    chain = ps_cell(3.0, 60.0, 0.1, 3)

    assert chain.drain.tolist() == [1.0] * 3
    assert chain.variance.tolist() == chain.give_up.tolist() == [0.0] * 3
    assert chain.killed.sum(axis=1) == pytest.approx(-chain.end)


def test_answers_are_compared_in_standard_errors_where_there_are_any() -> None:
    one = Estimate(1.0)
    exact = QoeMetrics("exact", one, one, one, one, one, one)
    measured = replace(exact, startup_s=Estimate(1.2, 0.1), stall_s=Estimate(0.7, 0.1))

    assert exact.z_scores(exact) == {}
    assert measured.z_scores(exact) == pytest.approx({"startup_s": 2.0, "stall_s": -3.0})


# Exactly at the limits ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("capacity_bps", 0.0),
        ("arrivals_per_s", 0.0),
        ("views", (Views(1.0, 60.0), Views(0.0, 60.0))),
        ("views", (Views(1.0, 0.0),)),
        ("views", (Views(1.0 + 1e-8, 60.0),)),
        ("views", (Views(1.0 - 1e-8, 60.0),)),
    ],
)
def test_a_cell_at_the_wrong_side_of_a_limit_is_refused(field: str, value: object) -> None:
    with pytest.raises(BadInput):
        replace(reference_cell(), **{field: value})  # type: ignore[arg-type]


def test_one_user_and_shares_up_to_rounding_are_accepted() -> None:
    assert replace(reference_cell(), max_users=1, views=(Views(1.0 + 1e-10, 60.0),)).max_users == 1


@pytest.mark.parametrize(
    "options",
    [
        {"goal_s": 0.0},
        {"goal_s": 20.0, "top_goal_s": 0.0},
        {"segment_s": -0.1},
        {"segment_s": math.inf},
    ],
)
def test_a_player_without_room_for_video_is_refused(options: dict[str, float]) -> None:
    with pytest.raises(BadInput, match="give seconds above zero"):
        Player(1.0, **options)  # type: ignore[arg-type]


def test_a_goal_holds_for_all_bitrates_unless_the_highest_has_its_own() -> None:
    assert Player(0.0, goal_s=20.0).full_s == 20.0
    assert Player(0.0, goal_s=20.0, top_goal_s=30.0).full_s == 30.0


def test_what_a_player_does_is_refused_only_where_it_would_be_ignored() -> None:
    plain, segments, limited = Player(1.0), Player(1.0, segment_s=0.001), Player(1.0, goal_s=30.0)
    plain.check_unlimited()
    limited.check_fluid()

    for refuse in (segments.check_fluid, segments.check_unlimited):
        with pytest.raises(BadInput, match="leave segment_s out"):
            refuse()
    with pytest.raises(BadInput, match="leave it out here"):
        limited.check_unlimited()


def test_zero_is_a_rate_of_ends_scatter_and_patience_and_rounding_is_no_mistake() -> None:
    chain = ps_cell(3.0, 60.0, 0.1, 3)
    still = replace(chain, end=np.zeros(3), generator=chain.generator + 1e-11, initial=chain.initial + 1e-11)

    assert still.killed.tolist() == still.generator.tolist()
    with pytest.raises(BadInput, match="rows that sum to zero"):
        replace(chain, generator=chain.generator + 1e-8)
    with pytest.raises(BadInput, match="sums to 1"):
        replace(chain, initial=chain.initial + 1e-8)
    with pytest.raises(BadInput, match="fill and drain"):
        replace(chain, fill=np.array([1.0, 0.0, 1.0]))


@pytest.mark.parametrize(
    ("levels", "rates", "message"),
    [
        ([], np.zeros((0, 0)), "0 levels"),
        ([1.0, 1.0], np.zeros((2, 1)), "make them 2 x 2"),
        ([1.0, math.nan], np.zeros((2, 2)), "finite"),
        ([0.0, 0.0], np.zeros((2, 2)), "above zero"),
        ([-1e-9, 1.0], np.zeros((2, 2)), "above zero"),
        ([0.0, 1.0], np.array([[-1.0, 1.0], [-1.0, 1.0]]), "zero or more"),
        ([0.0, 1.0], np.array([[-1.0, 1.0 + 1e-8], [1.0, -1.0]]), "sum to zero"),
    ],
)
def test_levels_at_the_wrong_side_of_a_limit_are_refused(
    levels: list[float], rates: npt.NDArray[np.float64], message: str
) -> None:
    with pytest.raises(BadInput, match=message):
        Capacity(np.array(levels), rates)


def test_a_level_without_throughput_is_accepted() -> None:
    capacity = Capacity(np.array([0.0, 1.0]), np.array([[-2000.0, 2000.0 + 1e-7], [1.0, -1.0]]))

    assert capacity.levels.tolist() == [0.0, 1.0]
