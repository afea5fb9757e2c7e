"""The edge commands from the outside: help, JSON, files, options, and one sentence for every mistake."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from command_line import Run, report_of, rows_of
from takeup.edge.commands import edge
from takeup.edge.traces.files import save_instance
from takeup.edge.traces.generators import generate

SMALL = ("--setting", "paper", "--devices", "5")


# Help and reports -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("verb", sorted(edge.commands))
def test_every_verb_explains_itself(run: Run, verb: str) -> None:
    outcome = run("edge", verb, "--help")

    assert (outcome.code, outcome.err) == (0, "")
    assert outcome.out.startswith(f"Usage: takeup edge {verb} ")
    assert "--json" in outcome.out


ENDS = ("--budget-ms", "60000")  # the search ends by itself, on a busy machine too, so that it can be repeated
WITH_REPORT = [
    ("solve", *SMALL, *ENDS),
    ("solve", *SMALL, "--policy", "greedy", "--objective", "count", "--cores", "2", "--edge-hz", "4e8"),
    ("solve", *SMALL, "--policy", "auto", "--contiguous", "--modulations", "cqi", "--subcarriers", "6", *ENDS),
    ("compare", "greedy,exact,auto", *SMALL, "--instances", "2", *ENDS),
    ("simulate", "greedy,exact", *SMALL, "--arrivals", "50", "--cycles-shape", "4", "--gain-error-db", "2"),
    ("run", "greedy", *SMALL, "--dry-run"),
    ("size", *SMALL, "--target", "0.5", "--instances", "2"),
]


@pytest.mark.parametrize("arguments", WITH_REPORT, ids=" ".join)
def test_every_verb_prints_a_report_that_can_be_run_again(run: Run, tmp_path: Path, arguments: tuple[str, ...]) -> None:
    first = run("edge", *arguments, "--json", "--quiet")
    (tmp_path / "report.json").write_text(first.out)
    again = run("rerun", tmp_path / "report.json", "--json", "--quiet")

    assert report_of(first).domain == "edge"
    assert report_of(again).tables == report_of(first).tables


def test_solving_draws_the_turns_on_the_cores(run: Run, tmp_path: Path) -> None:
    outcome = run("edge", "solve", *SMALL, "--quiet")

    assert outcome.code == 0
    assert "core 1" in outcome.out
    assert (tmp_path / "takeup-out" / "runs-on-the-cores.png").exists()


def test_an_instance_from_a_file_is_solved(run: Run, tmp_path: Path) -> None:
    save_instance(tmp_path / "cell.json", generate("paper", np.random.default_rng(3), 4))
    rows = rows_of(run("edge", "solve", tmp_path / "cell.json", "--json"))

    assert [row["device"] for row in rows] == [0, 1, 2, 3]


def test_every_answer_has_a_gap_and_prices(run: Run) -> None:
    report = report_of(run("edge", "solve", *SMALL, "--policy", "greedy", "--json"))

    assert "at most" in report.tables[0].note
    ((_, _, saving_j, worth_j, bound_j, gap),) = report.tables[1].rows
    assert saving_j == worth_j
    assert isinstance(worth_j, float)
    assert isinstance(bound_j, float)
    assert gap == pytest.approx(100 * (1 - worth_j / bound_j))
    assert [row[0] for row in report.tables[2].rows] == ["subcarrier", "core"]
    assert all(isinstance(row[1], float) and row[1] >= 0 for row in report.tables[2].rows)


def test_more_devices_are_served_when_they_are_counted(run: Run) -> None:
    served = [
        sum(
            row["offloads"] is True
            for row in rows_of(run("edge", "solve", "--objective", aim, "--json", "--seed", "5"))
        )
        for aim in ("energy", "count")
    ]

    assert served[1] >= served[0]


def test_the_least_amounts_grow_with_the_target(run: Run) -> None:
    def least(target: float) -> list[object]:
        outcome = run("edge", "size", *SMALL, "--target", target, "--instances", "2", "--json", "--quiet")
        return [row["least"] for row in rows_of(outcome)]

    assert all(isinstance(low, int) for low in least(0.2))
    assert all(high is None or high >= low for low, high in zip(least(0.2), least(0.8), strict=True))  # type: ignore[operator]


# Mistakes -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("solve", "--setting", "papper"), "did you mean 'paper'"),
        (("solve", "--policy", "gredy"), "did you mean 'greedy'"),
        (("solve", "--objective", "enrgy"), "did you mean 'energy'"),
        (("solve", "missing.json"), "missing.json"),
        (("solve", "--devices", "-1"), "--devices"),
        (("solve", "--subcarriers", "0"), "--subcarriers"),
        (("solve", "--cores", "0"), "--cores"),
        (("solve", "--edge-hz", "-1"), "--edge-hz"),
        (("solve", "--modulations", "qam"), "modulations"),
        (("solve", "--policy", "greedy,auto"), "takes one policy"),
        (("solve", "--channel", "nowhere.csv"), "nowhere.csv"),
        (("simulate", "greedy", "--arrivals", "0"), "--arrivals"),
        (("size", "--target", "1.5"), "--target"),
        (("run", "--engine", "cluodlet", *SMALL), "did you mean 'cloudlet'"),
        (("run", "--link", "cable", *SMALL), "no link 'cable'"),
    ],
    ids=lambda part: " ".join(part) if isinstance(part, tuple) else "",
)
def test_a_mistake_is_answered_in_one_sentence(run: Run, arguments: tuple[str, ...], sentence: str) -> None:
    outcome = run("edge", *arguments, "--quiet")

    assert (outcome.code, outcome.out) == (2, "")
    assert outcome.err.startswith("error: ")
    assert outcome.err.count("\n") == 1
    assert sentence in outcome.err
