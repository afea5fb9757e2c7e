"""Slurm's programs: answers are told from failures, and a Slurm that is away from one that is empty."""

from __future__ import annotations

import stat
from collections.abc import Sequence
from pathlib import Path

import pytest

from takeup.cluster.engines.slurm.commands import CommandResult, Slurm, SlurmDown, caller
from takeup.errors import BadInput, MissingEngine

RECORDED = Path(__file__).parent / "recorded"


def answering(answer: CommandResult) -> Slurm:
    return Slurm(lambda arguments: answer)


def program(folder: Path, name: str, script: str) -> None:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


def test_jobs_are_those_that_were_printed() -> None:
    slurm = answering(CommandResult(0, (RECORDED / "squeue.json").read_text("utf-8")))

    assert [row["job_id"] for row in slurm.jobs()][:3] == [8, 9, 10]


def test_no_jobs_with_a_problem_beside_them_is_no_empty_cluster() -> None:
    slurm = answering(CommandResult(0, (RECORDED / "squeue_down.json").read_text("utf-8")))

    with pytest.raises(SlurmDown, match="Unspecified error"):
        slurm.jobs()


@pytest.mark.parametrize("text", ["", "Usage: squeue", "[]", '{"jobs": 3}', '{"errors": []}'])
def test_what_is_no_list_of_jobs_is_no_answer(text: str) -> None:
    with pytest.raises(SlurmDown):
        answering(CommandResult(0, text)).jobs()


@pytest.mark.parametrize(
    "problem",
    [
        "slurm_load_jobs error: Unable to contact slurm controller (connect failure)",
        "Unexpected message received for job 12",
        "Socket timed out on send/recv operation",
        "fatal: Could not establish a configuration source",
    ],
)
def test_a_program_that_reaches_nobody_is_no_refusal(problem: str) -> None:
    with pytest.raises(SlurmDown):
        answering(CommandResult(1, "", problem)).evict("1")


def test_a_refusal_names_the_reason() -> None:
    with pytest.raises(BadInput, match="Invalid job id specified for job 99"):
        answering(CommandResult(1, "", "Invalid job id specified for job 99\nmore")).hold("99")


def test_a_job_is_pinned_to_its_nodes_with_its_terms() -> None:
    asked: list[Sequence[str]] = []

    def call(arguments: Sequence[str]) -> CommandResult:
        asked.append(arguments)
        return CommandResult(0, "")

    Slurm(call).place("7", ("n1", "n2"), "QOS=spot")

    assert asked == [("scontrol", "update", "JobId=7", "ReqNodeList=n1,n2", "StartTime=now", "QOS=spot")]


def test_a_refusal_to_pin_a_job_is_told() -> None:
    with pytest.raises(BadInput, match="Job is no longer pending"):
        answering(CommandResult(1, "", "Job is no longer pending execution")).place("7", ("n1",))


def test_a_missing_program_is_named_with_its_package(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))

    with pytest.raises(MissingEngine, match="sinfo"):
        Slurm(caller()).nodes()


def test_a_program_that_hangs_is_given_up(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    program(tmp_path, "sinfo", "exec /bin/sleep 30")
    monkeypatch.setenv("PATH", str(tmp_path))

    with pytest.raises(SlurmDown, match="no answer"):
        Slurm(caller(timeout_s=0.2)).nodes()


def test_programs_are_told_which_slurm(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    program(tmp_path, "sinfo", """echo '{"errors": [], "nodes": [{"name": "'$SLURM_CONF'"}]}'""")
    monkeypatch.setenv("PATH", str(tmp_path))

    assert Slurm(caller(Path("/lab/slurm.conf"))).nodes() == [{"name": "/lab/slurm.conf"}]
