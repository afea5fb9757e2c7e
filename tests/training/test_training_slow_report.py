"""A slowdown as a report."""

from __future__ import annotations

from dataclasses import replace

import pytest

from support.slow_report import report_of_event
from takeup.core.render import to_text
from takeup.training.stragglers.contract import SlowdownEvent
from takeup.training.stragglers.detect.detector import StragglerDetector
from training.stragglers.plain_job import Faults, data_parallel, logs_of

Watched = tuple[StragglerDetector, list[SlowdownEvent]]


@pytest.fixture(scope="module")
def watched() -> Watched:
    watcher = StragglerDetector()
    return watcher, list(watcher.see(logs_of(data_parallel(4), 90, Faults(60, ranks={2: 1.6}), 0)))


def test_all_that_is_known_is_in_the_report(watched: Watched) -> None:
    watcher, (event,) = watched
    report = report_of_event(event, watcher.logs(20), watcher.iterations_s)
    what, suspects, accounts = report.tables

    assert what.rows[0][0] == event.began
    assert suspects.rows[0][:2] == ("compute", "2")
    assert report.notes == (event.sentence(),)
    assert [row["when"] for row in report.series[0].rows].count("since") == len(watcher.iterations_s) - event.began
    assert "rank 2 computes" in to_text(report)
    assert len(accounts.rows) == 4


def test_the_slow_rank_works_longest_and_waits_least(watched: Watched) -> None:
    watcher, (event,) = watched
    rows = report_of_event(event, watcher.logs(20)).tables[2].rows

    assert max(rows, key=lambda row: float(str(row[2])))[0] == 2
    assert min(rows, key=lambda row: float(str(row[3])))[0] == 2


def test_a_recovery_needs_no_suspects(watched: Watched) -> None:
    _, (event,) = watched
    report = report_of_event(replace(event, is_slow=False, suspects=()))

    assert report.title == "A job recovered"
    assert len(report.tables) == 1
    assert report.series == ()
