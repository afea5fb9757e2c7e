"""The reproduction of FALCON: every check that counts holds, and its tables hold what they say."""

from __future__ import annotations

from typing import get_args

import pytest

from reproduced import reproduced, together
from takeup.core.report import Cell, Report, Source, Table
from takeup.papers import numbers
from takeup.papers.falcon import reproduce

EXPECTED = numbers("falcon")


pytestmark = together


@pytest.fixture(scope="module")
def report() -> Report:
    return reproduced("falcon")


def table(report: Report, title: str) -> Table:
    return next(each for each in report.tables if each.title.startswith(title))


def rows(report: Report, title: str) -> dict[Cell, tuple[Cell, ...]]:
    return {row[0]: row[1:] for row in table(report, title).rows}


def test_every_check_that_counts_holds(report: Report) -> None:
    assert [check.name for check in report.checks if check.counts and not check.holds] == []
    assert len(report.checks) >= 40


def test_every_group_of_numbers_names_a_source_we_know() -> None:
    groups = [group for name, group in EXPECTED.items() if name not in ("setting", "notes")]

    assert all(group["source"] in get_args(Source) for group in groups)


def test_both_definitions_of_the_rates_stand_side_by_side(report: Report) -> None:
    _, printed, _, usual, _ = rows(report, "Detection as printed")["links: BOCD"]

    assert printed == pytest.approx(34.0, abs=0.1)
    assert usual == pytest.approx(51.6, abs=0.1)


def test_the_rule_as_printed_says_nothing_at_all(report: Report) -> None:
    accuracy, fpr, fnr, *_ = rows(report, "Detection on")["BOCD+V, as printed"]

    assert (fpr, fnr) == (0.0, 50.0)
    assert float(str(accuracy)) < 60


def test_ours_is_first_on_drawn_jobs(report: Report) -> None:
    f1 = {name: float(str(row[5])) for name, row in rows(report, "Detection on").items()}

    assert max(f1, key=lambda name: f1[name]) == "ours"


def test_autocorrelation_is_lost_where_anchors_are_not(report: Report) -> None:
    assert table(report, "Iterations found").rows[-1] == (120, True, None, 120)


def test_the_three_pipelines_of_the_figure_are_exact(report: Report) -> None:
    assert [row[2] for row in table(report, "Slow stages").rows] == [6.0, 8.0, 8.5]


def test_slow_devices_in_all_stages_cost_as_much_as_they_are_slow(report: Report) -> None:
    ours = [float(str(row[2])) for row in table(report, "Slow devices gathered").rows]

    assert ours == sorted(ours)
    assert ours[-1] == EXPECTED["gathered"]["factor"]


def test_shares_removed_by_an_exchange_are_those_of_the_slowdowns_beside_them(report: Report) -> None:
    for before, after, removed in rows(report, "Nodes exchanged").values():
        left = 1 - float(str(removed)) / 100
        assert 1 + left * (float(str(before)) - 1) == pytest.approx(float(str(after)))


def test_a_job_that_is_hit_twice_gets_back_a_part_each_time(report: Report) -> None:
    shares = [float(str(row[-1])) for row in table(report, "One job").rows]

    assert shares == pytest.approx([100 * 3 / 7, 100 / 3])


def test_nothing_beats_hindsight_and_ours_beats_the_published_rule(report: Report) -> None:
    for nothing, published, ours, best in rows(report, "When to act").values():
        assert float(str(best)) <= float(str(ours)) <= float(str(published)) <= float(str(nothing))


def test_it_is_the_same_every_time(report: Report) -> None:
    assert table(reproduce(quiet=True), "Detection on").rows == table(report, "Detection on").rows
