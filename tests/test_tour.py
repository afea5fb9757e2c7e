"""The tour shows every system that is present, and shows it winning where its paper says it wins."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from takeup.cli import takeup
from takeup.core.report import Report
from takeup.papers import PAPERS
from takeup.tour import STOPS

pytestmark = pytest.mark.xdist_group("tour")  # one process takes it, once


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tour")


@pytest.fixture(scope="module")
def result(folder: Path) -> Result:
    return CliRunner().invoke(takeup, ["tour", "--out", str(folder)])


def column(report: Report, policy: str, name: str) -> list[float]:
    """The numbers of a policy, row by row."""
    table = report.tables[0]
    index = [column.name for column in table.columns].index(name)
    return [float(str(row[index])) for row in table.rows if row[0] == policy]


def test_there_is_a_stop_for_every_paper() -> None:
    assert [stop.system for stop in STOPS] == list(PAPERS)


def test_every_stop_prints_its_sentence_and_its_table(result: Result) -> None:
    assert result.exit_code == 0
    for stop in STOPS:
        assert f"{stop.system.upper()}. {stop.sentence}" in result.stdout


def test_the_person_is_told_what_happens_on_stderr(result: Result, folder: Path) -> None:
    running = [line.partition(":")[0] for line in result.stderr.splitlines() if "running" in line]

    assert running == [stop.system for stop in STOPS]
    assert f"open {folder / 'index.html'} in a browser" in result.stderr


@pytest.mark.usefixtures("result")
def test_the_index_links_to_pages_that_exist(folder: Path) -> None:
    index = (folder / "index.html").read_text()

    for stop in STOPS:
        assert f'href="{stop.system}/report.html"' in index
        assert (folder / stop.system / "report.html").exists()


@pytest.mark.usefixtures("result")
def test_lrc_is_never_slower_than_lru(folder: Path) -> None:
    report = Report.load(folder / "lrc" / "report.json")
    pairs = zip(column(report, "lrc", "time"), column(report, "lru", "time"), strict=True)

    assert all(lrc <= lru for lrc, lru in pairs)


@pytest.mark.usefixtures("result")
def test_all_hits_of_lerc_are_effective_where_those_of_lrc_are_not(folder: Path) -> None:
    report = Report.load(folder / "lerc" / "report.json")
    lerc, lrc = column(report, "lerc", "effective"), column(report, "lrc", "effective")

    assert lerc == column(report, "lerc", "hits")
    assert all(ours > theirs for ours, theirs in zip(lerc, lrc, strict=True))


@pytest.mark.usefixtures("result")
def test_stalls_fall_with_the_start_threshold_and_rise_with_arrivals(folder: Path) -> None:
    table = Report.load(folder / "qoe" / "report.json").tables[0]
    names = [column.name for column in table.columns]
    stalls = {(row[0], row[2]): float(str(row[names.index("P(stall)")])) for row in table.rows}
    arrivals, starts = ([*dict.fromkeys(key[place] for key in stalls)] for place in (0, 1))

    assert len(stalls) == len(table.rows) == len(arrivals) * len(starts)
    assert all(stalls[rate, short] > stalls[rate, long] for rate in arrivals for short, long in pairwise(starts))
    assert all(stalls[few, start] < stalls[many, start] for start in starts for few, many in pairwise(arrivals))


@pytest.mark.usefixtures("result")
def test_gfs_keeps_more_promises_than_the_baseline_and_leaves_less_idle_than_as_printed(folder: Path) -> None:
    report = Report.load(folder / "gfs" / "report.json")

    assert column(report, "gfs", "promises kept") > column(report, "yarn_cs", "promises kept")
    assert column(report, "gfs", "evictions per period") < column(report, "yarn_cs", "evictions per period")
    assert column(report, "gfs", "allocation") >= column(report, "gfs_published", "allocation")
