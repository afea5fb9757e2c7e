"""A day of a real Slurm as a workload, and the loop over an engine."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cluster.engines.slurm.fake_slurm import FakeSlurm
from takeup.cluster.engines.slurm import QosClasses, Slurm, SlurmEngine
from takeup.cluster.engines.slurm.commands import CommandResult
from takeup.cluster.engines.slurm.rows import NodeRow, past_workload
from takeup.cluster.model import Decision, Evict, Kind, State
from takeup.cluster.policies import find_policy
from takeup.cluster.simulate import replay
from takeup.core.clock import VirtualClock
from takeup.core.control import ControlLoop
from takeup.errors import TakeupError

RECORDED = json.loads((Path(__file__).parent / "recorded" / "sacct.json").read_text("utf-8"))["jobs"]
NODES = {f"n{number}": NodeRow(f"n{number}", "a100", 8, is_fit=True) for number in range(16)}
BEGIN_S = 1_794_755_800.0


def recorded(*numbers: int) -> list[dict[str, Any]]:
    return [row for row in RECORDED if row["job_id"] in numbers]


def test_a_gang_becomes_a_job_with_its_nodes_gpus_and_times() -> None:
    workload, _ = past_workload(recorded(82), NODES, QosClasses(), BEGIN_S)

    assert (workload.num_jobs, workload.num_nodes, workload.pools) == (1, 16, ("a100",))
    assert (workload.job_kind[0], workload.job_workers[0], workload.job_gpus[0]) == (Kind.HIGH, 4, 8)
    assert (workload.job_submit_s[0], workload.job_duration_s[0]) == (629, 131)
    assert workload.organisations == ("research",)


def test_the_runs_of_an_evicted_job_are_one_job() -> None:
    first = recorded(65)[0]
    second = {**first, "time": {**first["time"], "submission": first["time"]["submission"] + 50, "elapsed": 30}}

    workload, _ = past_workload([second, first], NODES, QosClasses(), BEGIN_S)

    assert workload.num_jobs == 1
    assert workload.job_duration_s[0] == first["time"]["elapsed"] + 30
    assert workload.job_submit_s[0] == first["time"]["submission"] - BEGIN_S


def test_of_a_run_that_began_before_the_window_only_what_lies_inside_counts() -> None:
    row = recorded(82)[0]
    long_s = {**row["time"], "start": BEGIN_S - 86_400, "submission": BEGIN_S - 90_000, "elapsed": 86_400 + 180}
    gone_s = {**row["time"], "start": BEGIN_S - 500, "submission": BEGIN_S - 600, "elapsed": 400}

    workload, skipped = past_workload(
        [{**row, "time": long_s}, {**row, "job_id": 1001, "time": gone_s}], NODES, QosClasses(), BEGIN_S
    )

    assert (workload.job_submit_s.tolist(), workload.job_duration_s.tolist()) == ([0], [180])
    assert skipped == {"never ran": 1}


@pytest.mark.parametrize("odd", [{"time": [1]}, {"tres": "gpu"}, {"tres": {"allocated": [3]}}, {"comment": 7}])
def test_a_row_with_an_odd_type_is_left_out_and_counted(odd: dict[str, Any]) -> None:
    workload, skipped = past_workload([{**recorded(82)[0], **odd}], NODES, QosClasses(), BEGIN_S)

    assert (workload.num_jobs, skipped) == (0, {"malformed": 1})


def test_rows_that_cannot_be_replayed_are_counted_by_reason() -> None:
    no_gpus = {**recorded(82)[0], "job_id": 1000, "tres": {"allocated": []}}

    workload, skipped = past_workload([*recorded(15, 1), no_gpus], NODES, QosClasses(), BEGIN_S)

    assert workload.num_jobs == 0
    assert skipped == {"not of our QOS": 1, "never ran": 1, "no GPUs, or of an unknown model": 1}


def test_jobs_come_in_the_order_of_their_submission() -> None:
    workload, _ = past_workload(RECORDED, NODES, QosClasses(), BEGIN_S)

    assert workload.num_jobs > 3
    assert (np.diff(workload.job_submit_s) >= 0).all()


def test_what_a_job_remarked_goes_with_it() -> None:
    row = recorded(82)[0]
    row = {**row, "qos": "spot", "comment": {"job": "takeup guarantee_h=4 checkpoint_s=900"}}

    workload, _ = past_workload([row], NODES, QosClasses(), BEGIN_S)

    assert (workload.job_guarantee_h[0], workload.job_checkpoint_s[0]) == (4, 900)


@dataclass
class Cluster:
    """A Slurm in memory with an accounting database."""

    fake: FakeSlurm = field(default_factory=lambda: FakeSlurm(num_nodes=16))
    asked: list[str] = field(default_factory=list)
    is_broken: bool = False

    def __call__(self, arguments: Sequence[str]) -> CommandResult:
        if arguments[0] != "sacct":
            return self.fake(arguments)
        self.asked += [word for word in arguments if "time=" in word]
        return (
            CommandResult(1, "", "no database") if self.is_broken else CommandResult(0, json.dumps({"jobs": RECORDED}))
        )

    def engine(self) -> SlurmEngine:
        return SlurmEngine(
            slurm=Slurm(self), wall=lambda: self.fake.now_s, monotonic=lambda: self.fake.now_s, read_only=True
        )


@dataclass
class Ruthless:
    """A scheduler that evicts everybody, whatever happens."""

    name: str = "ruthless"

    def decide(self, state: State) -> list[Decision]:
        return [Evict(run.job.id, "", 0.0, "because") for run in state.runs]


def test_a_dry_run_tells_what_it_would_do_and_changes_nothing() -> None:
    cluster, clock = Cluster(), VirtualClock()
    cluster.fake.run("spot", 8, "n0")
    told: set[tuple[type[Decision], str]] = set()

    ControlLoop(
        clock,
        cluster.engine(),
        Ruthless(),
        3600.0,
        dry_run=True,
        on_decision=lambda decision, outcome: told.add((type(decision), outcome)),
    ).start()
    clock.run(86_400)

    assert told == {(Evict, "dry run")}
    assert cluster.fake.changes == []


def test_a_day_can_be_replayed_under_another_scheduler() -> None:
    day, _ = Cluster().engine().past(datetime.fromtimestamp(BEGIN_S, UTC), datetime.fromtimestamp(BEGIN_S + 3600, UTC))

    outcome = replay(day, find_policy("fifo"))

    assert outcome.num_evictions.sum() == 0


def test_accounting_that_does_not_answer_is_reported() -> None:
    with pytest.raises(TakeupError, match="no database"):
        Cluster(is_broken=True).engine().past(datetime.fromtimestamp(0, UTC), datetime.fromtimestamp(3600, UTC))


def test_decisions_are_carried_out_unless_the_engine_only_looks() -> None:
    cluster, clock = Cluster(), VirtualClock()
    cluster.fake.run("spot", 8, "n0")
    engine = cluster.engine()
    engine.read_only = False

    ControlLoop(clock, engine, Ruthless(), 1.0).start()
    clock.run(0.5)

    assert cluster.fake.jobs["1"]["job_state"] == "COMPLETING"
