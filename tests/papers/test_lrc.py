"""The reproduction of LRC: every check that counts holds, and what was not verified says so."""

from __future__ import annotations

from typing import Any, get_args

import pytest

from reproduced import reproduced, together
from takeup.core.report import Report, Source
from takeup.papers import PAPERS, numbers

EXPECTED = numbers("lrc")


pytestmark = together


@pytest.fixture(scope="module")
def report() -> Report:
    return reproduced("lrc")


def check(report: Report, name: str) -> Any:
    return next(check for check in report.checks if check.name == name)


def test_every_check_that_counts_holds(report: Report) -> None:
    assert [check.name for check in report.checks if check.counts and not check.holds] == []
    assert sum(check.counts for check in report.checks) >= 4


def test_the_abstract_is_the_only_thing_quoted_from_the_paper(report: Report) -> None:
    quoted = [(check.expected, check.relation) for check in report.checks if check.source == "paper"]

    assert quoted == [(EXPECTED["speedup"]["over_lru_share"], "at least")]


def test_remembered_numbers_are_unverified_and_explained(report: Report) -> None:
    remembered = set(EXPECTED["remembered"].values())
    matching = [check for check in report.checks if check.expected in remembered]

    assert len(matching) == 4
    assert all(check.source == "unverified" and check.why for check in matching)


def test_what_does_not_agree_is_said_first(report: Report) -> None:
    missed = [check for check in report.checks if not check.holds]

    assert missed
    for check, note in zip(missed, report.notes, strict=False):
        assert note.startswith(f"does not agree: {check.name}, ours ")


def test_knowing_each_job_only_when_it_starts_is_compared_too(report: Report) -> None:
    rows = report.tables[-1].rows
    times = {
        (row[0], row[1]): float(str(row[5])) for table in report.tables[:1] for row in table.rows if row[0] == "lrc"
    }

    assert len(rows) == len(EXPECTED["setting"]["workloads"]) * len(EXPECTED["setting"]["capacities_percent"])
    assert [row[2] for row in rows[: len(times)]] == pytest.approx(list(times.values()))
    assert any(row[3] != pytest.approx(row[2]) for row in rows)


def test_there_is_one_table_and_two_charts_for_every_application(report: Report) -> None:
    workloads = EXPECTED["setting"]["workloads"]

    assert [table.title.rpartition(", ")[2] for table in report.tables[:-1]] == workloads
    assert len(report.series) == 2 * len(workloads)


def test_lrc_has_at_least_the_hits_of_lru_at_every_size(report: Report) -> None:
    for table in report.tables[:-1]:
        hits = {(row[0], row[1]): float(str(row[2])) for row in table.rows}
        for (policy, cache), share in hits.items():
            if policy == "lrc":
                assert share >= hits["lru", cache]


def test_the_largest_saving_is_the_one_in_the_table(report: Report) -> None:
    times = {(row[0], row[1]): float(str(row[4])) for row in report.tables[0].rows}
    savings = [1 - times["lrc", cache] / seconds for (policy, cache), seconds in times.items() if policy == "lru"]

    assert check(report, "largest time saved on PageRank, LRC over LRU").ours == pytest.approx(max(savings))


@pytest.mark.parametrize("paper", PAPERS)
def test_every_group_of_numbers_names_a_source_we_know(paper: str) -> None:
    groups = {name: group for name, group in numbers(paper).items() if name not in ("setting", "notes")}

    assert groups
    assert all(group["source"] in get_args(Source) for group in groups.values())
