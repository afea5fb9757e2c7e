"""A real Slurm under a real controller: 16 emulated nodes with eight fake GPUs each, started once for all tests."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from cluster.engines.slurm.slurm_lab import (
    NUM_NODES,
    SCRIPT,
    Lab,
    Nursery,
    fill,
    gang_after_s,
    killed,
    larger_quota_after_s,
    needs_lab,
    wait_until,
)
from takeup.cluster.contract import StaticQuota
from takeup.cluster.engines.slurm import Slurm, SlurmDown, SlurmEngine
from takeup.cluster.engines.slurm.commands import CommandResult, caller
from takeup.cluster.engines.slurm.rows import JobStatus
from takeup.cluster.model import Evict, Grade, Hold, Kind, Start
from takeup.cluster.policies import find_policy
from takeup.core.clock import VirtualClock
from takeup.core.control import ControlLoop
from takeup.errors import BadInput

GUIDE = Path(__file__).parents[4] / "docs" / "guides" / "slurm.md"

pytestmark = needs_lab


@pytest.fixture
def engine(lab: Lab, tmp_path: Path) -> Iterator[SlurmEngine]:
    """An engine in this process."""
    engine = SlurmEngine(tmp_path / "journal", conf=lab.conf)
    yield engine
    engine.close()


def start(lab: Lab, engine: SlurmEngine, job: str, *nodes: str, grade: Grade = Grade.GUARANTEED) -> None:
    engine.observe()
    engine.apply(Start(job, nodes, grade, "because"))
    wait_until(lambda: job in lab.running(), f"job {job}")


def statuses(lab: Lab, names: Sequence[str]) -> Counter[JobStatus]:
    jobs = lab.jobs()
    return Counter(jobs[name].status for name in names if name in jobs)


def test_a_gang_of_four_nodes_runs_where_it_was_put_and_its_victims_wait_again(lab: Lab, nursery: Nursery) -> None:
    nursery.start("gfs", 0.5)
    spots = fill(lab)
    wait_until(lambda: len(lab.running()) == len(spots), "full cluster")
    gang, took_s = gang_after_s(lab, spots)
    print(f"a gang of 4 nodes ran {took_s:.2f} s after it was submitted, 16 victims were requeued")

    wait_until(
        lambda: statuses(lab, spots) == {JobStatus.RUNNING: 48, JobStatus.HELD: 16}, "16 victims that wait again"
    )
    jobs = lab.jobs()
    decided = [it for it in nursery.entries() if it["do"] == "start" and it["job"] == gang]
    assert [set(jobs[gang].nodes)] == [set(it["nodes"]) for it in decided]
    assert jobs[gang].gpus_on == (8, 8, 8, 8)
    assert Counter(jobs[name].num_restarts for name in spots) == {0: 48, 1: 16}
    assert {jobs[name].qos for name in spots if jobs[name].num_restarts} == {"spot_idle"}


def test_a_new_quota_is_in_force_at_once_and_a_lower_one_kills_nobody(lab: Lab, nursery: Nursery) -> None:
    spots = fill(lab)
    print(f"a larger quota was in use after {larger_quota_after_s(lab, nursery):.2f} s")
    nursery.start("gfs_published", 8 / 128)
    wait_until(lambda: "gpu=8" in lab.call("sacctmgr", "-nP", "show", "qos", "spot", "format=grptres"), "lower limit")

    assert lab.gpus("spot") == 48
    assert {job.num_restarts for job in lab.jobs().values()} == {0}
    assert len(lab.jobs()) == len(spots)


def test_slurm_itself_lets_nobody_in_above_the_quota(lab: Lab, nursery: Nursery) -> None:
    spots = fill(lab, 6)
    nursery.start("gfs_published", 4 / 128)
    wait_until(lambda: lab.gpus("spot") == 4, "use of the quota")
    nursery.kill()

    for name in spots:
        if lab.jobs()[name].status == JobStatus.HELD:
            lab.call("scontrol", "release", name)  # somebody who should not

    wait_until(lambda: "QOSGrpGRES" in lab.call("squeue", "-h", "-o", "%r"), "refusal by Slurm")
    assert lab.gpus("spot") == 4


def test_killed_twenty_times_no_job_is_lost_none_evicted_twice_and_the_quota_holds(lab: Lab, nursery: Nursery) -> None:
    found = killed(lab, nursery, num_times=20, seed=20_261_115)
    print(found)

    assert (found.num_jobs_lost, found.num_unexplained_restarts, found.num_evicted_twice_for_one) == (0, 0, 0)
    assert found.num_evictions > 0
    assert found.most_gpus_freed_for_one <= 16
    assert 0 < found.most_guaranteed_gpus <= 64


def test_a_dry_run_changes_nothing(lab: Lab) -> None:
    spots = fill(lab, 4)
    lab.submit("hp", "--nodes=16", "--gres=gpu:8")
    before = lab.jobs(), lab.call("sacctmgr", "-nP", "show", "qos")
    engine = SlurmEngine(conf=lab.conf, read_only=True)
    told: list[object] = []
    scheduler = find_policy("gfs", StaticQuota(0.25))
    loop = ControlLoop(
        VirtualClock(), engine, scheduler, 1.0, dry_run=True, on_decision=lambda decision, outcome: told.append(outcome)
    )

    loop.step()
    loop.step()

    assert len(told) >= len(spots)
    assert set(told) == {"dry run"}
    assert (lab.jobs(), lab.call("sacctmgr", "-nP", "show", "qos")) == before


def test_the_victim_is_whoever_saved_last(lab: Lab, engine: SlurmEngine) -> None:
    """The job of high priority waits for some seconds, until its wait has cost as much as the eviction destroys."""
    careless, careful = lab.submit("spot", "--gres=gpu:8"), lab.submit("spot", "--gres=gpu:8")
    start(lab, engine, careless, "n0")
    start(lab, engine, careful, "n1")
    foreign = lab.submit("normal", "--nodes=14", "--gres=gpu:8")
    wait_until(lambda: foreign in lab.running(), "others on all other nodes")
    time.sleep(1.1)
    saved_s = int(time.time())
    lab.call("scontrol", "update", f"JobId={careful}", f"Comment=takeup saved_s={saved_s}")
    gang = lab.submit("hp", "--gres=gpu:8")

    scheduler, evictions = find_policy("gfs", StaticQuota(0.5)), list[Evict]()

    def pays() -> bool:
        evictions[:] = [it for it in scheduler.decide(engine.observe()) if isinstance(it, Evict)]
        return bool(evictions)

    wait_until(pays, "moment at which an eviction pays")
    assert [(it.job_id, it.for_job) for it in evictions] == [(careful, gang)]
    assert evictions[0].lost_gpu_s <= 8 * (time.time() - saved_s)


def test_a_narrow_job_moves_for_a_wider_one_and_runs_elsewhere(lab: Lab, engine: SlurmEngine) -> None:
    narrow, wide = lab.submit("spot", "--gres=gpu:4"), lab.submit("spot", "--gres=gpu:8")
    start(lab, engine, narrow, "n0", grade=Grade.OPPORTUNISTIC)
    engine.observe()
    engine.apply(Evict(narrow, wide, 0.0, "because"))
    engine.apply(Start(wide, ("n0",), Grade.OPPORTUNISTIC, "because"))
    wait_until(lambda: wide in lab.running(), "wide job")
    wait_until(lambda: lab.jobs()[narrow].status == JobStatus.HELD, "narrow job that waits")
    start(lab, engine, narrow, "n1", grade=Grade.OPPORTUNISTIC)

    running = lab.running()
    assert {name: running[name].nodes for name in (narrow, wide)} == {narrow: ("n1",), wide: ("n0",)}
    assert running[narrow].num_restarts == 1


def test_no_job_with_a_promise_is_evicted_for_a_spot_job(lab: Lab, engine: SlurmEngine) -> None:
    narrow, wide = lab.submit("spot", "--gres=gpu:4"), lab.submit("spot", "--gres=gpu:8")
    start(lab, engine, narrow, "n0")
    engine.observe()

    with pytest.raises(BadInput, match="without a promise"):
        engine.apply(Evict(narrow, wide, 0.0, "because"))
    with pytest.raises(BadInput, match="let it wait"):
        engine.apply(Start(wide, ("n0",), Grade.OPPORTUNISTIC, "because"))

    state = engine.observe()
    assert [run.job.id for run in state.runs] == [narrow]
    assert [wait.job.id for wait in state.waiting] == [wide]


def test_a_job_that_is_told_saves_its_work_leaves_at_once_and_goes_on_where_it_was(
    lab: Lab, engine: SlurmEngine, tmp_path: Path
) -> None:
    saved, log, steps, allowed = (tmp_path / name for name in ("saved", "log", "steps", "allowed"))
    script = f"""
    count=$(cat {saved} 2> /dev/null || echo 0)
    echo begin $count >> {log}
    save() {{
        while [ ! -e {allowed} ]; do sleep 0.05; done
        echo $count > {saved}
        scontrol update JobId=$SLURM_JOB_ID Comment="takeup notice=USR1 saved_s=$(date +%s)"
    }}
    trap save USR1
    while true; do count=$((count + 1)); echo $count > {steps}; sleep 0.05; done
    """
    job = lab.submit("spot", "--gres=gpu:8", "--comment=takeup notice=USR1", script=script)
    gang = lab.submit("hp", "--gres=gpu:8")
    start(lab, engine, job, "n3")
    wait_until(steps.exists, "first step of the job")  # it can be told by now

    state = engine.observe()
    engine.apply(Evict(job, gang, 0.0, "because", notice_s=600.0))
    kept = engine.observe().nominations
    allowed.touch()  # from here on it may have left
    took_s = wait_until(lambda: engine.observe() and job not in lab.running(), "leaving")
    print(f"it had 600 s to save its work and left after {took_s:.2f} s")
    wait_until(lambda: lab.jobs()[job].status == JobStatus.HELD, "held job")
    start(lab, engine, job, "n5")
    wait_until(lambda: len(log.read_text().split("begin")) == 3, "second run")

    first, second = (int(line.split()[1]) for line in log.read_text().splitlines())
    assert [run.job.id for run in state.runs] == [job]
    assert kept == {gang: ("n3",)}
    assert (first, second) == (0, int(saved.read_text()))
    assert second > 0
    assert lab.jobs()[job].num_restarts == 1


def test_what_was_decided_is_what_slurm_does(lab: Lab, engine: SlurmEngine) -> None:
    lab.submit("spot", "--gres=gpu:1", "--array=0-3")
    lab.submit("spot", "--ntasks=4", "--gpus-per-task=4")
    lab.submit("spot", "--nodes=3", "--gres=gpu:a100:2")
    lab.submit("hp", "--nodes=2", "--gres=gpu:8")
    scheduler = find_policy("gfs", StaticQuota(1.0))
    decisions = [it for it in scheduler.decide(engine.observe()) if not isinstance(it, Hold)]

    for decision in decisions:
        engine.apply(decision)
    wait_until(lambda: len(lab.running()) == 7, "seven jobs")

    starts = {it.job_id: it for it in decisions if isinstance(it, Start)}
    state = engine.observe()
    assert {run.job.id: Counter(run.nodes) for run in state.runs} == {
        name: Counter(it.nodes) for name, it in starts.items()
    }
    assert {run.job.id: run.grade for run in state.runs} == {name: it.grade for name, it in starts.items()}
    assert sum(run.job.kind == Kind.HIGH for run in state.runs) == 1


def test_a_slurm_that_was_away_is_found_again_as_it_was(lab: Lab) -> None:
    job = lab.submit("spot", "--gres=gpu:2")
    patience_s = 60.0

    def call(arguments: Sequence[str]) -> CommandResult:
        return caller(lab.conf, timeout_s=patience_s)(arguments)

    engine = SlurmEngine(slurm=Slurm(call))
    start(lab, engine, job, "n2")
    before = engine.observe()
    pid = int((lab.folder / "run" / "slurmctld.pid").read_text())

    os.kill(pid, 15)
    wait_until(lambda: not Path(f"/proc/{pid}").exists(), "end of slurmctld")
    patience_s = 2.0
    with pytest.raises(SlurmDown):
        engine.observe()
    with pytest.raises(SlurmDown, match="asked again"):
        engine.observe()
    lab.call("slurmctld")
    wait_until(lab.answers, "slurmctld")
    patience_s = 60.0
    engine.backoff.succeeded()
    after = engine.observe()

    assert [(run.job.id, run.nodes, run.start_s) for run in after.runs] == [
        (run.job.id, run.nodes, run.start_s) for run in before.runs
    ]


def test_the_program_of_the_guide_runs_a_job(lab: Lab, tmp_path: Path) -> None:
    (program,) = re.findall(r"^```python\n(.*?)^```", GUIDE.read_text("utf-8"), re.DOTALL | re.MULTILINE)
    names: dict[str, Any] = {}
    exec(program, names)
    job = lab.submit("spot", "--gres=gpu:2")

    names["run"](lab.conf, tmp_path / "journal", 1.5)

    assert f'"job": "{job}"' in (tmp_path / "journal").read_text("utf-8")
    assert lab.jobs()[job].status in (JobStatus.RELEASED, JobStatus.RUNNING)


def test_the_command_runs_a_job_and_reports_it(lab: Lab, tmp_path: Path) -> None:
    job = lab.submit("hp", "--gres=gpu:8", "--nodes=2")
    options = ["--engine", "slurm", "--conf", str(lab.conf), "--journal", "journal"]
    times = ["--period-s", "0.3", "--for-s", "2", "--json"]

    done = subprocess.run(
        [sys.executable, "-m", "takeup", "cluster", "run", "gfs", *options, *times],
        check=True,
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )

    wait_until(lambda: job in lab.running(), "running job")
    assert json.loads(done.stdout)["tables"]


def test_starting_a_lab_that_runs_and_stopping_one_that_does_not_is_harmless(lab: Lab, tmp_path: Path) -> None:
    again = subprocess.run([SCRIPT, "start", lab.folder], check=True, capture_output=True, text=True)
    nothing = subprocess.run([SCRIPT, "stop", tmp_path / "none"], check=True, capture_output=True, text=True)
    environment = subprocess.run([SCRIPT, "env", lab.folder], check=True, capture_output=True, text=True)

    assert "already runs" in again.stderr
    assert "no lab" in nothing.stderr
    assert environment.stdout == f"export SLURM_CONF={lab.conf}\n"
    assert len(lab.slurm.nodes()) == NUM_NODES
