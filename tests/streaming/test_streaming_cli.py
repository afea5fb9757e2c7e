"""The streaming commands from the outside: help, JSON, sweeps, units, and one sentence for every mistake."""

from __future__ import annotations

import gzip
from functools import partial
from pathlib import Path

import pytest

from command_line import Run, assert_one_sentence, rows_of
from takeup.core.report import Report
from takeup.streaming.commands import streaming


@pytest.fixture
def stream(run: Run) -> Run:
    """Run `takeup streaming` in this process, in an empty folder."""
    return partial(run, "streaming")


# Help and reports -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("verb", sorted(streaming.commands))
def test_every_verb_explains_itself(stream: Run, verb: str) -> None:
    outcome = stream(verb, "--help")

    assert (outcome.code, outcome.err) == (0, "")
    assert outcome.out.startswith(f"Usage: takeup streaming {verb} ")
    assert "--json" in outcome.out


WITH_REPORT = [
    ("predict",),
    ("predict", "--opportunistic", "--resume", "2"),
    ("predict", "--mean-video-s", "20,120", "--view-shares", "0.7,0.3", "--max-users", "4"),
    ("optimise", "--stall-cost", "20"),
    ("size", "--stall-target", "0.1"),
    ("simulate", "tagged", "--num-videos", "1000"),
    ("compare", "tagged,cell", "--num-videos", "1000"),
]


@pytest.mark.parametrize("arguments", WITH_REPORT, ids=" ".join)
def test_json_is_a_report_and_nothing_else(stream: Run, arguments: tuple[str, ...]) -> None:
    outcome = stream(*arguments, "--json", "--quiet")
    report = Report.from_json(outcome.out)

    assert (outcome.code, outcome.err) == (0, "")
    assert report.tables[0].rows
    assert (report.domain, report.scenario["verb"]) == ("streaming", arguments[0])
    assert list(Path.cwd().iterdir()) == []


def test_text_goes_to_stdout_and_the_chart_is_named_on_stderr(stream: Run) -> None:
    outcome = stream("predict", "--quiet")

    assert outcome.code == 0
    assert outcome.out.startswith("Streaming: what viewers experience\n")
    assert outcome.err == f"wrote {Path('takeup-out') / 'p-stall-by-start-threshold.png'}\n"


def test_out_holds_the_report_as_data_page_and_charts(stream: Run) -> None:
    outcome = stream("predict", "--out", "folder", "--quiet")
    names = {path.suffix for path in Path("folder").iterdir()}

    assert outcome.code == 0
    assert names == {".png", ".svg", ".html", ".json"}
    assert Report.load(Path("folder/report.json")).title == "Streaming: what viewers experience"


def test_a_log_is_fitted_and_predicts(stream: Run) -> None:
    Path("link.csv").write_text("rate_bps\n" + "".join(f"{1e6 if n % 50 < 20 else 4e6}\n" for n in range(300)))
    fitted = stream("fit", "link.csv", "--json", "--quiet")
    by_log = stream("predict", "--log", "link.csv", "--json", "--quiet")

    assert fitted.code == by_log.code == 0
    assert Report.from_json(fitted.out).title == "Streaming: fit of link"
    assert len(rows_of(by_log)) == 1


def test_a_saved_report_can_be_run_again(run: Run) -> None:
    run("streaming", "predict", "--out", "folder", "--quiet")

    assert run("rerun", "folder/report.json", "--quiet").code == 0


# Sweeps and units -----------------------------------------------------------------------------------------------------


def test_lists_sweep(stream: Run) -> None:
    rows = rows_of(stream("predict", "--arrivals", "0.08,0.1,0.12", "--start", "2,5", "--json", "--quiet"))

    assert [(row["arrivals"], row["start at"]) for row in rows] == [
        (rate, start_s) for rate in (0.08, 0.1, 0.12) for start_s in (2.0, 5.0)
    ]


@pytest.mark.parametrize(
    ("text", "rate_bps"),
    [
        ("2.5Mbit", 2.5e6),
        ("2.5 Mbit/s", 2.5e6),
        ("2500kbps", 2.5e6),
        ("360kbit", 360e3),
        ("360k", 360e3),
        ("1.5gbit", 1.5e9),
        ("2500000", 2.5e6),
        ("2.5e6", 2.5e6),
        ("8000bit", 8000.0),
    ],
)
@pytest.mark.parametrize("option", ["capacity", "bitrate"])
def test_rates_are_read_with_and_without_units(stream: Run, option: str, text: str, rate_bps: float) -> None:
    outcome = stream("size", f"--{option}", text, "--json", "--quiet")

    assert Report.from_json(outcome.out).scenario[f"{option}_bps"] == pytest.approx(rate_bps)


@pytest.mark.parametrize("text", ["40%", "2.5MB", "2.5MiB", "fast", "", "-1Mbit", "1Mbit/h", "1,5Mbit", "nan", "inf"])
@pytest.mark.parametrize("option", ["--capacity", "--bitrate"])
def test_what_is_no_rate_is_one_sentence(stream: Run, option: str, text: str) -> None:
    outcome = stream("predict", f"{option}={text}")

    assert_one_sentence(outcome, f"{text!r} is not a rate; write bit/s with a unit such as '2.5Mbit' or '360kbit'")


# Mistakes -------------------------------------------------------------------------------------------------------------

MISTAKES = [
    (("predict", "--capacity", "0"), "--capacity is 0.0; give a finite number above zero"),
    (("predict", "--arrivals", "often"), "--arrivals is 'often'; give a number, or several separated by commas"),
    (("predict", "--arrivals", "0.1,,0.2"), "--arrivals is '0.1,,0.2'"),
    (("predict", "--arrivals", "nan"), "--arrivals is nan; give a finite number above zero"),
    (("predict", "--start", "-1"), "--start is -1.0; give a finite number of seconds, zero or more"),
    (("predict", "--start", "1e9"), "give seconds of video from 0 to 1e+07"),
    (("predict", "--resume", "-1"), "--resume is -1.0"),
    (("predict", "--max-users", "0"), "--max-users is 0; a cell serves at least one user"),
    (("predict", "--mean-video-s", "20,120"), "give as many view_shares as mean_video_s"),
    (("predict", "--view-shares", "0.5"), "the shares of the views add up to 0.5; make it 1"),
    (("predict", "--log", "nowhere.csv"), "nowhere.csv: cannot be opened"),
    (("optimise", "--start", "1,2"), "'optimise' takes one arrival rate and one start threshold"),
    (("optimise", "--stall-cost", "-1"), "the cost of a second in stalls is -1.0"),
    (("size", "--stall-target", "0"), "the target for stalls is 0.0; give a share between 0 and 1"),
    (("simulate", "taged"), "no simulator 'taged'; did you mean 'tagged'?"),
    (("simulate", "tagged,"), "no simulator ''"),
    (("compare", "tagged", "--num-videos", "-1"), "-1"),
    (("compare", "tagged", "--seed", "-1"), "the seed is -1"),
]


@pytest.mark.parametrize(("arguments", "sentence"), MISTAKES, ids=lambda value: str(value)[:60])
def test_a_mistake_is_one_sentence(stream: Run, arguments: tuple[str, ...], sentence: str) -> None:
    assert_one_sentence(stream(*arguments, "--quiet"), sentence)


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (("predikt",), "'predikt'"),
        (("predict", "--capcity", "1"), "--capacity"),
        (("predict", "--max-users", "many"), "'many'"),
        (("fit",), "'LOG'"),
    ],
)
def test_a_misused_command_shows_its_usage(stream: Run, arguments: tuple[str, ...], hint: str) -> None:
    outcome = stream(*arguments)

    assert (outcome.code, outcome.out) == (2, "")
    assert outcome.err.startswith("Usage: takeup streaming")
    assert hint in outcome.err.splitlines()[-1]


BAD_LOGS = {
    "negative.csv": ("rate_bps\n1e6\n-5\n", "line 3, column 'rate_bps'"),
    "unsorted.csv": ("time_s,rate_bps\n1,1\n0,1\n", "line 3, column 'time_s'"),
    "short.csv": ("rate_bps,duration_s\n1e6,0.1\n2e6,0.1\n", "less than two seconds of throughput"),
    "keys.json": ('[{"duration": 1}]', "sample 1 has no number 'duration_ms'"),
    "empty.csv": ("", "is empty"),
}


@pytest.mark.parametrize("name", BAD_LOGS)
def test_a_bad_log_is_one_sentence_and_leaves_no_model(stream: Run, name: str) -> None:
    text, sentence = BAD_LOGS[name]
    Path(name).write_text(text)

    assert_one_sentence(stream("fit", name, "--quiet"), sentence)
    assert [path.name for path in Path.cwd().iterdir()] == [name]


def test_a_log_that_is_cut_off_is_one_sentence(stream: Run) -> None:
    Path("cut.csv.gz").write_bytes(gzip.compress(("rate_bps\n" + "1e6\n2e6\n" * 500).encode())[:40])

    assert_one_sentence(stream("fit", "cut.csv.gz"), "cut.csv.gz")


# Advice ---------------------------------------------------------------------------------------------------------------


def test_advice_is_printed_with_settings_and_intervals(stream: Run) -> None:
    Path("log").write_text("".join(f"{second} {1 + second % 5}\n" for second in range(900)))
    found = Report.from_json(stream("advise", "log", "--bitrate", "2Mbit", "--json", "--quiet").out)

    assert [column.name for column in found.tables[0].columns][5:8] == ["P(stall)", "from", "to"]
    assert len(found.tables[1].rows) == 5


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("advise", "nowhere", "--bitrate", "2Mbit"), "nowhere"),
        (("advise", "log", "--bitrate", "2Mbit", "--players", "dashjs"), "no player 'dashjs'"),
        (("advise", "log", "--bitrate", "2Mbit", "--segment-s", "0"), "--segment-s is 0"),
        (("predict", "--give-up", "-1"), "--give-up is -1"),
        (("predict", "--bitrate", "360"), "--bitrate is 360 bit/s; write the unit"),
    ],
)
def test_a_mistake_in_advice_is_one_sentence(stream: Run, arguments: tuple[str, ...], sentence: str) -> None:
    Path("log").write_text("0 1\n1 2\n2 3\n")

    assert_one_sentence(stream(*arguments, "--quiet"), sentence)
