"""The reproduction of LERC: all cells of the zip experiment, the admission rule, and the times."""

from __future__ import annotations

import pytest

from reproduced import reproduced, together
from takeup.core.report import Report
from takeup.papers import numbers

EXPECTED = numbers("lerc")


pytestmark = together


@pytest.fixture(scope="module")
def report() -> Report:
    return reproduced("lerc")


def test_every_check_that_counts_holds(report: Report) -> None:
    assert [check.name for check in report.checks if check.counts and not check.holds] == []


def test_all_cells_are_compared_within_two_percent_points(report: Report) -> None:
    cells = [check for check in report.checks if check.source == "measured"]
    setting = EXPECTED["setting"]

    assert len(cells) == len(setting["policies"]) * len(setting["capacities_percent"]) * 2 == 60
    assert {check.tolerance for check in cells} == {0.02}


def test_a_cell_is_compared_with_the_number_of_its_own_row_and_column(report: Report) -> None:
    cells = {check.name: check.expected for check in report.checks}

    assert cells["lrc at 66 %, hit"] == 0.650
    assert cells["lrc at 66 %, effective"] == 0.300
    assert cells["lru at 95 %, effective"] == 0.285


def test_only_the_abstract_is_quoted_from_the_paper(report: Report) -> None:
    quoted = [(check.name, check.expected) for check in report.checks if check.source == "paper"]

    assert quoted == [("time saved, LERC over LRU", EXPECTED["speedup"]["over_lru_share"])]


def test_remembered_times_are_unverified_and_explained(report: Report) -> None:
    remembered = {EXPECTED["times"]["lrc_over_lru_share"], EXPECTED["times"]["lerc_over_lrc_share"]}
    matching = [check for check in report.checks if check.expected in remembered]

    assert len(matching) == 2
    assert all(check.source == "unverified" and check.why for check in matching)


def test_the_report_says_how_the_draw_was_chosen_and_how_much_it_matters(report: Report) -> None:
    spread = report.tables[1]

    assert any("seed 26, chosen because" in note for note in report.notes)
    assert [row[0] for row in spread.rows] == EXPECTED["setting"]["capacities_percent"]
    assert all(float(str(row[2])) >= 0 for row in spread.rows)


def test_the_report_says_that_the_load_was_chosen_and_what_others_would_give(report: Report) -> None:
    saved = {row[0]: float(str(row[1])) for row in report.tables[2].rows}
    check = next(check for check in report.checks if check.name == "time saved, LERC over LRU")

    assert list(saved) == EXPECTED["setting"]["other_loads_s"]
    assert saved[0.02] == pytest.approx(float(str(check.ours)))
    assert sorted(saved.values(), reverse=True) == list(saved.values())
    assert "chosen with this number in view" in check.why


def test_under_lerc_nearly_every_hit_is_effective(report: Report) -> None:
    rows = [row for row in report.tables[0].rows if row[0] == "lerc"]

    assert rows
    assert all(float(str(row[3])) == pytest.approx(float(str(row[2])), abs=0.02) for row in rows)


def test_lru_has_no_effective_hit_until_nearly_everything_fits(report: Report) -> None:
    effective = {row[1]: row[3] for row in report.tables[0].rows if row[0] == "lru"}

    assert all(share == 0 for cache, share in effective.items() if float(str(cache)) <= 80)
