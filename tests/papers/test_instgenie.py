"""The reproduction of InstGenIE: every check that counts holds, and its tables hold what they say."""

from __future__ import annotations

from typing import get_args

import pytest

from reproduced import reproduced, together
from takeup.core.report import Report, Source, Table
from takeup.papers import numbers
from takeup.papers.instgenie import template_size

EXPECTED = numbers("instgenie")


pytestmark = together


@pytest.fixture(scope="module")
def report() -> Report:
    return reproduced("instgenie")


def table(report: Report, title: str) -> Table:
    return next(each for each in report.tables if each.title.startswith(title))


def test_every_check_that_counts_holds(report: Report) -> None:
    assert [check.name for check in report.checks if check.counts and not check.holds] == []
    assert len(report.checks) >= 20


def test_every_group_of_numbers_names_a_source_we_know() -> None:
    groups = [group for name, group in EXPECTED.items() if name not in ("setting", "notes")]

    assert all(group["source"] in get_args(Source) for group in groups)


def test_the_published_size_of_a_template_is_found() -> None:
    check = template_size(EXPECTED).checks[0]

    assert check.holds
    assert check.ours == pytest.approx(2.58, abs=0.01)


def test_the_best_plan_is_never_longer_than_the_rule(report: Report) -> None:
    for _, _, whole, by_keys, by_outputs, best, ahead in table(report, "Steps with templates").rows:
        assert ahead <= best <= min(whole, by_keys, by_outputs)  # type: ignore[operator, type-var]


def test_all_routes_serve_the_same_edits(report: Report) -> None:
    rows = {row[0]: row for row in table(report, "Edits with mixed masks").rows}

    assert set(rows) == {"round_robin", "fewest_tokens", "shortest_step", "earliest_finish"}
    assert float(rows["earliest_finish"][4]) < float(rows["fewest_tokens"][4])  # type: ignore[arg-type]


def test_the_report_says_that_masks_are_synthetic(report: Report) -> None:
    assert any("beta distributions" in note for note in report.notes)
