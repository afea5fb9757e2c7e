"""The reproduction of ADAPTRA: every check that counts holds, and its tables hold what they say."""

from __future__ import annotations

from typing import get_args

import pytest

from reproduced import reproduced, together
from takeup.core.report import Report, Source
from takeup.papers import numbers

EXPECTED = numbers("adaptra")


pytestmark = together


@pytest.fixture(scope="module")
def report() -> Report:
    return reproduced("adaptra")


def test_every_check_that_counts_holds(report: Report) -> None:
    assert [check.name for check in report.checks if check.counts and not check.holds] == []
    assert sum(check.counts for check in report.checks) >= 70


def test_every_group_of_numbers_names_a_source_we_know() -> None:
    groups = [group for name, group in EXPECTED.items() if name not in ("setting", "notes")]

    assert all(group["source"] in get_args(Source) for group in groups)


def test_the_figures_of_the_paper_are_reproduced_exactly(report: Report) -> None:
    checks = [check for check in report.checks if check.name.startswith("Figures 4 and 5")]

    assert [check.ours for check in checks] == [390, 400, 440, 410, 420]
    assert all(check.source == "paper" for check in checks)


def test_the_table_of_the_theorem_has_the_delays_it_should(report: Report) -> None:
    table = next(table for table in report.tables if table.title.startswith("Added to the iteration"))

    assert {str(row[0]): list(row[1:]) for row in table.rows} == EXPECTED["theorem"]["extra_ms"]


def test_what_is_not_verified_decides_nothing_and_is_explained(report: Report) -> None:
    unverified = [check for check in report.checks if not check.counts]

    assert len(unverified) == 4
    assert all(check.why for check in unverified)


def test_the_report_can_be_written_and_read(report: Report) -> None:
    assert Report.from_json(report.to_json()).checks == report.checks
