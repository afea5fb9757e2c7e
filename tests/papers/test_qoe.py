"""The reproduction of flow-level QoE: the reference cells, the simulations beside them, and the claims of the paper."""

from __future__ import annotations

import math
from itertools import product

import numpy as np
import pytest
from scipy.integrate import solve_ivp

from reproduced import reproduced, together
from takeup.core.report import Report, Table
from takeup.papers import numbers
from takeup.papers.qoe.claims import frozen_chain, mean_throughput_chain
from takeup.papers.qoe.reference import (
    digit_check,
    eigen_stall_probability,
    reference_cell,
    reference_chain,
    reference_solution,
)
from takeup.papers.qoe.riccati import RiccatiSolver
from takeup.streaming.model import Chain, Player

EXPECTED = numbers("qoe")
SETTING = EXPECTED["setting"]


pytestmark = together


@pytest.fixture(scope="module")
def report() -> Report:
    return reproduced("qoe")


def table(report: Report, title: str) -> Table:
    return next(table for table in report.tables if table.title == title)


def column(report: Report, title: str, place: int) -> list[float]:
    return [float(str(row[place])) for row in table(report, title).rows]


# The checks -----------------------------------------------------------------------------------------------------------


def test_every_check_holds(report: Report) -> None:
    assert [check.name for check in report.checks if not check.holds] == []


def test_nothing_is_said_to_be_printed_in_the_paper(report: Report) -> None:
    assert {check.source for check in report.checks} == {"measured", "bar"}
    assert any("not verified" in note for note in report.notes)


def test_all_eighteen_cells_are_compared_to_half_of_their_last_digit(report: Report) -> None:
    checks = {check.name: check for check in report.checks}
    found = [
        checks[f"P(stall) at {arrivals:g} arrivals/s, threshold {start_s:g} s"]
        for arrivals, start_s in product(SETTING["arrivals_per_s"], SETTING["starts_s"])
    ]

    assert len(found) == 18
    assert all(check.source == "measured" for check in found)
    assert [check.expected for check in found] == [float(text) for row in EXPECTED["stalls"]["cells"] for text in row]
    assert all((check.tolerance or 1) <= 5.001e-6 for check in found)


def test_deep_tails_are_compared_in_their_own_digits(report: Report) -> None:
    checks = {check.name: check for check in report.checks}

    assert checks["P(stall), threshold 150 s"].expected == 2.8e-13
    assert checks["P(stall), threshold 150 s"].tolerance == pytest.approx(5e-15)


def test_a_tolerance_that_is_wider_than_half_a_digit_is_explained(report: Report) -> None:
    startup = {check.name: check for check in report.checks if check.name.startswith("start-up at")}
    wide = [name for name, check in startup.items() if abs(float(str(check.ours)) - float(str(check.expected))) > 5e-4]

    assert len(startup) == 6
    assert wide == ["start-up at 0.12 arrivals/s, threshold 5 s"]
    assert startup[wide[0]].why
    assert any("a whole one" in note for note in report.notes)


def test_what_the_paper_only_says_in_words_is_a_bar_of_ours_and_says_so(report: Report) -> None:
    checks = {check.name: check for check in report.checks}

    for name in ("largest effect of fading on P(stall)", "share of stalls that the mean throughput explains"):
        assert checks[name].source == "bar"
        assert "the paper" in checks[name].why


def test_the_start_up_that_the_reference_rounds_up_is_confirmed_step_by_step() -> None:
    chain = reference_chain(SETTING, 0.12)
    steps = solve_ivp(
        lambda _, mean_s: (1 + chain.killed @ mean_s) / chain.fill, (0.0, 5.0), np.zeros(10), rtol=1e-10, atol=1e-12
    )
    startup_s = float(chain.initial @ steps.y[:, -1])

    assert startup_s == pytest.approx(3.003498, abs=1e-6)
    assert reference_solution(SETTING, 0.12).answer(Player(5.0)).startup_s.value == pytest.approx(startup_s, abs=1e-7)


# Tables and charts ----------------------------------------------------------------------------------------------------


def test_every_cell_stands_beside_two_simulations_within_the_bar(report: Report) -> None:
    title = "P(stall) from equations and simulations"
    scores = [abs(score) for place in (4, 5, 7) for score in column(report, title, place)]

    assert len(scores) == 3 * 18
    assert max(scores) <= EXPECTED["bars"]["z"]
    assert max(scores) > 0.1  # a simulation is never exact


def test_a_frozen_cell_errs_to_both_sides_and_the_mean_throughput_sees_no_stall(report: Report) -> None:
    ratios = column(report, "P(stall) with and without coming and going", 4)

    assert min(ratios) < 0.9
    assert max(ratios) > 100
    assert set(column(report, "P(stall) with and without coming and going", 6)) == {0.0}


def test_fading_adds_a_tenth_to_a_quarter(report: Report) -> None:
    effects = column(report, "P(stall) of an opportunistic cell", 4)

    assert [round(effect) for effect in effects] == [13, 21, 9, 14, 24]


def test_variance_of_the_bitrate_grows_from_small_to_decisive(report: Report) -> None:
    effects = column(report, "Variable bit rate in the reference cell", 2)
    ratios = column(report, "Near criticality variance matters", 3)

    assert effects == sorted(effects)
    assert effects[0] == pytest.approx(0.0, abs=1e-9)
    assert ratios == sorted(ratios)
    assert ratios[-1] / ratios[0] > 3


def test_the_charts_of_the_paper_are_there(report: Report) -> None:
    assert [series.title for series in report.series] == [
        "P(stall) by start threshold",
        "Start-up delay",
        "Dynamics on and off, 0.12 arrivals/s",
        "Fading on and off",
        "Variable bit rate on and off",
        "Cost by start threshold",
    ]
    assert len({row["line"] for row in report.series[0].rows}) == 3


def test_the_report_can_be_written_and_read(report: Report) -> None:
    again = Report.from_json(report.to_json())

    assert again == report
    assert again.holds


# The parts ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("written", "tolerance"), [("0.02303", 5e-6), ("1.6e-4", 5e-6), ("2.200", 5e-4), ("8", 0.5), ("1e-6", 5e-7)]
)
def test_the_digits_of_a_written_number_are_its_tolerance(written: str, tolerance: float) -> None:
    check = digit_check("x", float(written), written, source="measured")

    assert check.tolerance == pytest.approx(tolerance)
    assert check.holds


def test_a_number_is_refused_just_beyond_half_a_digit() -> None:
    assert digit_check("x", 0.12349, "0.123", source="measured").holds
    assert not digit_check("x", 0.12351, "0.123", source="measured").holds
    assert digit_check("x", 0.12351, "0.123", source="measured", last_digits=1).holds


@pytest.mark.parametrize("arrivals", SETTING["arrivals_per_s"])
@pytest.mark.parametrize("start_s", [0.5, 10.0])
def test_frozen_users_stall_as_a_closed_form_says(arrivals: float, start_s: float) -> None:
    chain = reference_chain(SETTING, arrivals)
    slow = chain.fill < 1
    longer_than_s = start_s / (1 - chain.fill[slow])  # a shorter video is downloaded before the buffer is empty
    closed = float(chain.initial[slow] @ np.exp(-longer_than_s / 60.0))

    assert RiccatiSolver().solution(frozen_chain(chain)).stall_probability(start_s) == pytest.approx(closed, rel=1e-9)


def test_the_mean_throughput_agrees_with_little() -> None:
    chain = reference_chain(SETTING, 0.12)
    load = reference_cell(SETTING, 0.12).load
    law = load ** np.arange(11) / (load ** np.arange(11)).sum()
    mean_users, accepted_per_s = float(law @ np.arange(11)), 0.12 * (1 - float(law[-1]))

    assert mean_throughput_chain(chain, 60.0).fill[0] == pytest.approx(60.0 * accepted_per_s / mean_users, rel=1e-9)


def test_a_constant_throughput_below_the_bitrate_stalls_every_video_that_is_long_enough() -> None:
    alone = Chain(np.zeros((1, 1)), np.array([0.5 / 60]), np.array([0.5]), np.ones(1))
    same = mean_throughput_chain(alone, 60.0)

    assert same.fill[0] == pytest.approx(0.5)
    assert RiccatiSolver().solution(same).stall_probability(5.0) == pytest.approx(math.exp(-10 / 60))
    assert eigen_stall_probability(same, 5.0) == pytest.approx(math.exp(-10 / 60))


def test_eigenvectors_see_no_stall_where_no_buffer_falls() -> None:
    chain = reference_chain(SETTING | {"max_users": 3}, 0.12)

    assert chain.fill.min() > 1
    assert eigen_stall_probability(chain, 5.0) == 0.0


def test_eigenvectors_agree_with_the_solver_in_the_reference_cell() -> None:
    solution = reference_solution(SETTING, 0.12)

    assert eigen_stall_probability(solution.chain, 5.0) == pytest.approx(solution.stall_probability(5.0), abs=1e-12)
