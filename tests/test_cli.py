"""Every command from the outside: help, JSON, exit codes, and one sentence for every mistake."""

from __future__ import annotations

import errno
import gzip
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from command_line import Run, assert_one_sentence
from takeup.cli import takeup as command_tree
from takeup.core.report import Check, Report

DATA = Path(__file__).parent / "caching" / "data"
TASKS = "task,compute_s,inputs,outputs,output_bytes\n"


def contexts(context: click.Context) -> Iterator[click.Context]:
    yield context
    if isinstance(context.command, click.Group):
        for name in context.command.list_commands(context):
            command = context.command.get_command(context, name)
            assert command is not None
            yield from contexts(click.Context(command, context, name))


ROOT_CONTEXT = click.Context(command_tree, info_name="takeup", **command_tree.context_settings)
ALL_COMMANDS = [context.command_path.split()[1:] for context in contexts(ROOT_CONTEXT)]


# Help -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("words", ALL_COMMANDS, ids=" ".join)
@pytest.mark.parametrize("option", ["--help", "-h"])
def test_every_command_explains_itself(run: Run, words: list[str], option: str) -> None:
    outcome = run(*words, option)

    assert (outcome.code, outcome.err) == (0, "")
    assert outcome.out.startswith(f"Usage: {' '.join(['takeup', *words])} ")


def test_the_version_is_printed(run: Run) -> None:
    assert run("--version").out.startswith("takeup, version ")


# Reports --------------------------------------------------------------------------------------------------------------

WITH_REPORT = [
    ("caching", "simulate", "lerc+admission", "--capacity", "50%"),
    ("caching", "simulate", "lru", "--workload", "scan", "--capacity", "1GB", "--seed", "7"),
    ("caching", "compare", "lru,dag", "--workload", "pagerank", "--miss", "recompute", "--capacity", "20%,40%"),
    (
        "caching",
        "compare",
        "lru,lerc",
        "--cost-model",
        "all-or-nothing",
        "--profile",
        "online",
        "--disk-bytes-per-s",
        "5e7",
    ),
    ("caching", "simulate", "lerc", "--workload", "scan", "--reasons", "--capacity", "10%"),
    ("caching", "whatif", DATA / "zip.eventlog", "--policies", "lru,belady", "--capacity", "50%"),
    ("doctor",),
]


@pytest.mark.parametrize("arguments", WITH_REPORT, ids=lambda arguments: " ".join(map(str, arguments[:4])))
def test_json_is_a_report_and_nothing_else(run: Run, arguments: tuple[object, ...]) -> None:
    outcome = run(*arguments, "--json", "--quiet")
    report = Report.from_json(outcome.out)

    assert (outcome.code, outcome.err) == (0, "")
    assert report.tables[0].rows
    assert report.version
    assert report.created
    assert report.machine
    assert list(Path.cwd().iterdir()) == []


def test_text_goes_to_stdout_and_the_rest_to_stderr(run: Run) -> None:
    outcome = run("caching", "compare", "lru,lrc", "--capacity", "40%", "--quiet")

    assert outcome.code == 0
    assert outcome.out.startswith("Caching: lru, lrc on zip\n")
    assert outcome.err == f"wrote {Path('takeup-out') / 'hits-on-zip.png'}\n"


def test_out_holds_the_report_as_data_page_and_charts(run: Run) -> None:
    outcome = run("caching", "simulate", "lru", "--out", "folder", "--quiet")
    names = sorted(path.name for path in Path("folder").iterdir())

    assert outcome.code == 0
    assert names == ["hits-on-zip.png", "hits-on-zip.svg", "report.html", "report.json"]
    assert Report.load(Path("folder/report.json")).title == "Caching: lru on zip"


# Exit codes -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("ours", "code"), [(0.7, 0), (0.5, 1)])
def test_reproduce_exits_with_one_when_a_check_that_counts_fails(
    run: Run, monkeypatch: pytest.MonkeyPatch, ours: float, code: int
) -> None:
    checks = (Check.at_least("speed-up", ours, 0.6), Check.near("old", 0.0, 9.0, 0.1, source="unverified"))
    report = Report("a paper", "papers", {"domain": "papers"}, 1, checks=checks)
    monkeypatch.setattr("takeup.papers.reproduce", lambda paper, quiet: report)

    assert run("reproduce", "lrc").code == code


def test_ctrl_c_stops_quietly(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*arguments: object, **options: object) -> Report:
        raise KeyboardInterrupt

    monkeypatch.setattr("takeup.caching.experiment.run", interrupted)
    outcome = run("caching", "simulate", "lru")

    assert (outcome.code, outcome.out) == (130, "")
    assert outcome.err.strip() == "stopped"


def in_process(*arguments: str, stdout: int) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-m", "takeup", *arguments]
    return subprocess.run(command, check=False, stdout=stdout, stderr=subprocess.PIPE)


def test_a_reader_that_has_gone_is_no_mistake() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    ended = in_process("doctor", stdout=writing)
    os.close(writing)

    assert (ended.returncode, ended.stderr) == (0, b"")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full, a device that is always full")
def test_a_full_stdout_is_one_sentence() -> None:
    with Path("/dev/full").open("wb") as full:
        ended = in_process("doctor", stdout=full.fileno())

    assert ended.returncode == 2
    assert ended.stderr.decode() == "error: [Errno 28] No space left on device\n"


# Mistakes -------------------------------------------------------------------------------------------------------------

UNKNOWN = [
    (("caching", "simulate", "lrcc"), "no caching policy 'lrcc'; did you mean 'lrc'?"),
    (("caching", "compare", "lru,lerk"), "no caching policy 'lerk'; did you mean 'lerc'?"),
    (("caching", "simulate", "lru", "--workload", "zipp"), "no caching workload 'zipp'; did you mean 'zip'?"),
    (("caching", "run", "lru", "--engine", "sparc"), "no caching engine 'sparc'; did you mean 'spark'?"),
    (("reproduce", "lercc"), "no paper 'lercc'; did you mean 'lerc'?"),
    (("caching", "compare", "lru,"), "no caching policy '' (known: lru, spark, lrc"),
]


@pytest.mark.parametrize(("arguments", "sentence"), UNKNOWN, ids=lambda value: str(value)[:60])
def test_an_unknown_name_is_answered_with_the_nearest(run: Run, arguments: tuple[str, ...], sentence: str) -> None:
    outcome = run(*arguments)

    assert_one_sentence(outcome)
    assert outcome.err.startswith(f"error: {sentence}")


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (("reproduse", "lrc"), "no command 'reproduse'; did you mean 'reproduce'?"),
        (("caching", "simulat", "lru"), "'simulat'"),
        (("caching", "simulate", "lru", "--capcity", "1GB"), "--capacity"),
        (("caching", "simulate"), "'POLICY'"),
        (("caching", "simulate", "lru", "--seed", "x"), "'x'"),
        (("xyz",), "no command 'xyz' (known: caching, cluster, edge, serving, serve, streaming, training, try"),
    ],
)
def test_a_misused_command_shows_its_usage(run: Run, arguments: tuple[str, ...], hint: str) -> None:
    outcome = run(*arguments)

    assert (outcome.code, outcome.out) == (2, "")
    assert outcome.err.startswith("Usage: takeup")
    assert hint in outcome.err.splitlines()[-1]


BAD_OPTIONS = [
    (("--capacity", "0"), "above zero, such as '2GB' or '40%'"),
    (("--capacity", "-5MB"), "'-5MB' is not a size"),
    (("--capacity", "lots"), "'lots' is not a size"),
    (("--seed", "-1"), "the seed is -1"),
    (("--miss", "tape"), "--miss is 'tape', expected 'disk', 'recompute' or 'level'"),
    (("--cost-model", "free"), "--cost-model is 'free'"),
    (("--disk-bytes-per-s", "0"), "--disk-bytes-per-s is 0"),
    (("--workload", "zip", "--trace", "x.csv"), "give either a workload by name or a trace file"),
    (("--trace", "nowhere.csv"), "nowhere.csv: cannot be opened"),
    (("--trace", "nowhere"), "nowhere: does not exist"),
]


@pytest.mark.parametrize(("options", "sentence"), BAD_OPTIONS, ids=lambda value: " ".join(value)[:40])
def test_a_bad_option_is_one_sentence(run: Run, options: tuple[str, ...], sentence: str) -> None:
    outcome = run("caching", "simulate", "lru", *options)

    assert_one_sentence(outcome)
    assert sentence in outcome.err


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("simulate", "lru,lrc"), "names several policies; `simulate` takes one"),
        (("run", "lru,lrc"), "names several policies; `run` takes one"),
        (("simulate", "lru+admission"), "keeps no rank"),
        (("simulate", "lrc+speed"), "the only option is '+admission'"),
        (("compare", "lru", "--on", "nowhere"), "no Dask scheduler answers at 'nowhere'"),
    ],
)
def test_what_does_not_go_together_is_one_sentence(run: Run, arguments: tuple[str, ...], sentence: str) -> None:
    outcome = run("caching", *arguments)

    assert_one_sentence(outcome)
    assert sentence in outcome.err


BAD_FILES = {
    "cycle.csv": (TASKS + "t,1,b,a,5\nu,1,a,b,5\n", "which task 'u' writes only then"),
    "unknown_block.csv": (TASKS + "t,1,,a,5\nu,1,a z,b,5\n", "line 3, column 'inputs': block 'z' is no output"),
    "negative.csv": (TASKS + "t,1,,a,-5\n", "line 2, column 'output_bytes': '-5' is not a whole number"),
    "compute.csv": (TASKS + "t,slow,,a,5\n", "line 2, column 'compute_s'"),
    "unknown_column.csv": ("object,time\nx,1\n", "column 'task'"),
    "empty.csv": ("", "is empty"),
    "no_log.json": ("{}\n", "one JSON event"),
}


@pytest.mark.parametrize("name", BAD_FILES)
def test_a_bad_trace_is_one_sentence_that_names_the_spot(run: Run, name: str) -> None:
    text, sentence = BAD_FILES[name]
    Path(name).write_text(text)
    outcome = run("caching", "simulate", "lru", "--trace", name)

    assert_one_sentence(outcome)
    assert name in outcome.err
    assert sentence in outcome.err


def test_a_truncated_table_is_one_sentence(run: Run) -> None:
    Path("cut.csv.gz").write_bytes(gzip.compress(("key\n" + "1\n2\n3\n" * 500).encode())[:40])
    outcome = run("caching", "simulate", "lru", "--trace", "cut.csv.gz")

    assert_one_sentence(outcome)
    assert "cut.csv.gz" in outcome.err


def test_a_truncated_event_log_is_one_sentence(run: Run) -> None:
    Path("cut.gz").write_bytes((DATA / "pagerank.eventlog.gz").read_bytes()[:1000])
    outcome = run("caching", "whatif", "cut.gz")

    assert_one_sentence(outcome)
    assert "the gzip data ends early" in outcome.err


def test_an_event_log_cut_in_mid_line_is_refused_unless_that_is_allowed(run: Run) -> None:
    Path("cut.eventlog").write_bytes((DATA / "zip.eventlog").read_bytes()[:-30])
    refused = run("caching", "whatif", "cut.eventlog")
    allowed = run("caching", "whatif", "cut.eventlog", "--allow-truncated", "--json", "--quiet")

    assert_one_sentence(refused)
    assert "is cut in the middle" in refused.err
    assert allowed.code == 0
    assert any("cut in the middle" in note for note in Report.from_json(allowed.out).notes)


# Writing --------------------------------------------------------------------------------------------------------------


def test_a_full_disk_is_one_sentence_after_the_result_and_leaves_no_file(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("takeup.core.files.os.fsync", full)
    outcome = run("caching", "simulate", "lru", "--out", "folder", "--json", "--quiet")

    assert outcome.code == 2
    assert Report.from_json(outcome.out).tables
    assert outcome.err == (
        f"error: cannot write {Path('folder') / 'report.json'}: No space left on device; "
        "nothing was left there, choose another place\n"
    )
    assert list(Path("folder").iterdir()) == []


def test_a_folder_that_is_a_file_is_one_sentence(run: Run) -> None:
    Path("folder").write_text("mine")
    outcome = run("doctor", "--out", "folder")

    assert outcome.code == 2
    assert outcome.err.startswith("error: cannot write folder")
    assert Path("folder").read_text() == "mine"
