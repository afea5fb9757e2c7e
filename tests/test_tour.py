"""The tour shows every system in a line and a card, with our number the best of those it is compared with."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from command_line import Run, assert_one_sentence
from takeup.cli import takeup
from takeup.core.report import Report, Table
from takeup.papers import PAPERS
from takeup.tour.cards import cards_html
from takeup.tour.command import chosen, line_of
from takeup.tour.stops import STOPS, Measure, TourStop, shown_of

pytestmark = [
    pytest.mark.xdist_group("tour"),  # one process takes it, once
    pytest.mark.timeout(1800),  # the first time it compiles kernels
]
ROOT = Path(__file__).parent.parent
LONGEST_LINE = 110
PAGE_BYTES = 1_000_000


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tour")


@pytest.fixture(scope="module")
def result(folder: Path) -> Result:
    return CliRunner().invoke(takeup, ["tour", "--out", str(folder)], catch_exceptions=False)


def test_there_is_a_stop_for_every_paper() -> None:
    assert [stop.system for stop in STOPS] == list(PAPERS)


@pytest.mark.parametrize("stop", STOPS, ids=lambda stop: stop.system)
def test_a_problem_has_at_most_seven_words_and_the_guide_exists(stop: TourStop) -> None:
    assert len(stop.problem.split()) <= 7
    assert (ROOT / "docs" / "guides" / f"{stop.guide}.md").exists()
    assert len(stop.why.split(". ")) >= 2


def test_the_tour_is_nine_lines_with_one_number_each(result: Result, folder: Path) -> None:
    lines = result.stdout.splitlines()

    assert result.exit_code == 0
    assert [line.split()[0] for line in lines] == [stop.system for stop in STOPS]
    assert max(map(len, lines)) <= LONGEST_LINE
    assert f"open {folder / 'index.html'} in a browser" in result.stderr


@pytest.mark.usefixtures("result")
@pytest.mark.parametrize("stop", STOPS, ids=lambda stop: stop.system)
def test_our_number_is_better_than_that_of_every_alternative(stop: TourStop, folder: Path) -> None:
    shown = shown_of(stop, Report.load(folder / stop.system / "report.json"))
    sign = -1 if stop.measure.more_is_better else 1
    ours = sign * shown.values[stop.measure.ours]

    assert all(ours < sign * value for label, value in shown.values.items() if label != stop.measure.ours)


@pytest.mark.usefixtures("result")
def test_the_page_is_small_and_every_card_leads_to_a_page_that_leads_back(folder: Path) -> None:
    index = (folder / "index.html").read_text()

    assert len(index.encode()) < PAGE_BYTES
    for stop in STOPS:
        page = (folder / stop.system / "report.html").read_text()
        assert f'href="{stop.system}/report.html"' in index
        assert f'<a href="../index.html#{stop.system}">All systems</a>' in page
        assert len(page.encode()) < 2 * PAGE_BYTES


@pytest.mark.usefixtures("result")
def test_where_another_design_is_faster_the_card_says_so(folder: Path) -> None:
    stop = STOPS[[stop.system for stop in STOPS].index("swiftdiffusion")]
    rows = Report.load(folder / "swiftdiffusion" / "report.json").tables[0].rows
    mean = {(row[0], row[1]): float(str(row[3])) for row in rows}

    assert mean[0.25, "swiftdiffusion"] < mean[0.25, "takeup"]
    assert f"{mean[0.25, 'swiftdiffusion']:.1f} s instead of {mean[0.25, 'takeup']:.1f} s" in stop.why


def small_report() -> Report:
    from takeup.core.report import Column

    columns = (Column("policy"), Column("cache"), Column("time"))
    rows = (("lru", 29.9999999, 4.0), ("lrc", 29.9999999, 2.0), ("fifo", 29.9999999, 3.0), ("lru", 40.0, 1.0))
    return Report("small", "caching", {}, 1, (Table("t", columns, rows),))


MEASURE = Measure("of a small job", "lrc", "time", " s", where={"cache": 30}, scale=10, digits=1)


def test_the_best_alternative_is_named_and_rows_are_chosen_up_to_rounding() -> None:
    stop = TourStop("lrc", "A problem.", {}, MEASURE, "Why.", "takeup", "spark")
    report = small_report()

    assert line_of(stop, report) == "lrc              20.0 s  (fifo 30.0 s)  of a small job"
    assert "of a small job; best alternative: fifo, 30.0 s" in cards_html([shown_of(stop, report)])


def test_a_measure_without_a_row_of_ours_is_noticed() -> None:
    with pytest.raises(AssertionError, match="no row for 'dag'"):
        shown_of(TourStop("lrc", "", {}, Measure("x", "dag", "time", "s"), "", "", ""), small_report())


def test_only_some_stops_can_be_taken_with_all_their_tables(run: Run, tmp_path: Path) -> None:
    outcome = run("tour", "--only", "adaptra,lerc", "--verbose", "--quiet")

    assert outcome.code == 0
    assert [line.split()[0] for line in outcome.out.splitlines() if " ms  (" in line or " %  (" in line] == [
        "lerc",
        "adaptra",
    ]
    assert "Policies by size of the cache" in outcome.out
    assert sorted(path.name for path in (tmp_path / "takeup-tour").iterdir()) == ["adaptra", "index.html", "lerc"]


def test_the_reports_can_be_had_as_json(run: Run) -> None:
    reports = json.loads(run("tour", "--only", "lerc", "--json", "--quiet").out)

    assert list(reports) == ["lerc"]
    assert reports["lerc"]["domain"] == "caching"


def test_an_unknown_stop_is_one_sentence(run: Run) -> None:
    assert_one_sentence(run("tour", "--only", "lrx"), "did you mean 'lrc'?")
    assert [stop.system for stop in chosen("gfs,lrc")] == ["lrc", "gfs"]
