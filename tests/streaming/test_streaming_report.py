"""Answers as tables and series: every cell is recomputed here from the answer it stands for."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from takeup.core.report import Report, Table
from takeup.streaming.model import Capacity, Cell, Estimate, Player, QoeMetrics
from takeup.streaming.report import (
    Curve,
    answers_table,
    capacity_table,
    cdf_series,
    curve_series,
    estimates_table,
    zscores_table,
)

CELL, PLAYER = Cell(3e6, 1e6, 0.04, 5), Player(4.0)


def answer(error: float, *values: float) -> QoeMetrics:
    startup, stalls, count, stalled, early = (Estimate(value, error) for value in values)
    return QoeMetrics("test", startup, stalls, count, stalled, early, Estimate(0.05))


EXACT = answer(0.0, 1.0, 0.2, 0.5, 2.0, 0.1)
MEASURED = answer(0.1, 1.2, 0.1, 0.5, 2.3, 0.1)


def column(table: Table, name: str) -> list[object]:
    place = [heading.name for heading in table.columns].index(name)
    return [row[place] for row in table.rows]


def round_trip(table: Table) -> Table:
    report = Report("title", "streaming", {}, 1, (table,))
    return Report.from_json(report.to_json()).tables[0]


def test_a_row_holds_the_cell_the_player_and_the_answer() -> None:
    table = answers_table([(CELL, PLAYER, EXACT, 4.5)])
    names = [heading.name for heading in table.columns]

    assert dict(zip(names, table.rows[0], strict=True)) == {
        "arrivals": 0.04,
        "load": pytest.approx(0.8),
        "start at": 4.0,
        "start-up": 1.0,
        "P(stall)": 0.2,
        "stalls": 0.5,
        "in stalls": 2.0,
        "early": 0.1,
        "blocked": 0.05,
        "MOS": 4.5,
    }


def test_an_endless_number_of_stalls_is_an_empty_cell() -> None:
    endless = replace(EXACT, num_stalls=Estimate(math.inf))
    answers, estimates = answers_table([(CELL, PLAYER, endless, 1.0)]), estimates_table({"equations": endless})

    assert column(answers, "stalls") == [None]
    assert estimates.rows[2] == ("stalls per video", None, None)
    assert round_trip(answers) == answers


def test_estimates_stand_beside_their_errors() -> None:
    table = estimates_table({"equations": EXACT, "tagged": MEASURED})

    assert [heading.name for heading in table.columns] == ["quantity", "equations", "±", "tagged", "±"]
    assert table.rows[0] == ("start-up (s)", 1.0, 0.0, 1.2, 0.1)
    assert len(table.rows) == 6
    assert round_trip(table) == table


def test_scores_are_measured_minus_exact_and_empty_where_nothing_is_uncertain() -> None:
    table = zscores_table(EXACT, {"tagged": MEASURED})

    assert column(table, "tagged") == [pytest.approx(z) for z in (2.0, -1.0, 0.0, 3.0, 0.0)] + [None]


def test_states_of_a_link_go_from_bad_to_good_with_their_shares_and_stays() -> None:
    generator = np.array([[-0.5, 0.5, 0.0], [0.0, -0.25, 0.25], [0.25, 0.0, -0.25]])
    table = capacity_table(Capacity(np.array([1.5, 0.1, 1.0]), generator))

    assert column(table, "level") == [0.1, 1.0, 1.5]
    assert column(table, "share of time") == [pytest.approx(share) for share in (0.4, 0.4, 0.2)]
    assert column(table, "stays") == [4.0, 4.0, 2.0]


def test_a_state_that_is_never_left_has_no_time_of_stay() -> None:
    table = capacity_table(Capacity(np.array([1.0]), np.array([[0.0]])))

    assert column(table, "share of time") == [pytest.approx(1.0)]
    assert column(table, "stays") == [None]


def test_curves_become_rows_by_line() -> None:
    series = curve_series("Title", "time", "rate", [Curve("a", [0, 1], [2, 3]), Curve("b", [0], [4])], y_unit="bit/s")

    assert (series.title, series.x_unit, series.y_unit, series.colour) == ("Title", "s", "bit/s", "line")
    assert [tuple(row.values()) for row in series.rows] == [("a", 0.0, 2.0), ("a", 1.0, 3.0), ("b", 0.0, 4.0)]


def test_a_distribution_is_drawn_in_steps_because_its_jumps_are_real() -> None:
    series = cdf_series([Curve("a", [0.0, 1.0], [0.0, 0.5])])

    assert series.kind == "step"
    assert "jump" in series.note
    assert [row[series.y] for row in series.rows] == [0.0, 0.5]
