"""The lab as tests use it: submit, look, wait, clean up, and a controller that can be killed."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from takeup.cluster.engines.slurm import Slurm
from takeup.cluster.engines.slurm.commands import caller
from takeup.cluster.engines.slurm.rows import JobRow, JobStatus, read_job

PROGRAMS = ("slurmctld", "slurmd", "slurmdbd", "munged", "mariadbd", "scontrol")
SEARCHED = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
MISSING = [name for name in PROGRAMS if shutil.which(name, path=SEARCHED) is None]
needs_lab = [
    pytest.mark.engine,
    pytest.mark.xdist_group("slurm"),
    pytest.mark.skipif(bool(MISSING), reason=f"needs {', '.join(MISSING)}: run scripts/slurm-lab install as root"),
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root, for daemons and device files"),
]
SCRIPT = Path(__file__).parents[4] / "scripts" / "slurm-lab"
NUM_NODES, NUM_GPUS = 16, 8


@dataclass(frozen=True)
class Lab:
    """A real Slurm in a folder."""

    folder: Path

    @property
    def conf(self) -> Path:
        return self.folder / "slurm.conf"

    @property
    def slurm(self) -> Slurm:
        return Slurm(caller(self.conf))

    def call(self, *arguments: object) -> str:
        """Run one of Slurm's programs; what it printed."""
        environment = {**os.environ, "SLURM_CONF": str(self.conf)}
        texts = [str(argument) for argument in arguments]
        done = subprocess.run(texts, check=False, capture_output=True, text=True, env=environment, timeout=120)
        assert done.returncode == 0, f"{texts}: {done.stderr or done.stdout}"
        return done.stdout

    def answers(self) -> bool:
        """Whether slurmctld is there."""
        return caller(self.conf)(["scontrol", "ping"]).code == 0

    def submit(self, qos: str, *options: object, script: str = "sleep 600") -> str:
        """The number of a new job; it is root's, and leaves no output."""
        fixed = ("--parsable", f"--qos={qos}", "--output=/dev/null", "--open-mode=append")
        return self.call("sbatch", *fixed, *options, f"--wrap={script}").strip()

    def jobs(self) -> dict[str, JobRow]:
        """All jobs that are not over."""
        rows = (job for row in self.slurm.jobs() for job in read_job(row))
        return {job.id: job for job in rows if job.status != JobStatus.OVER}

    def running(self) -> dict[str, JobRow]:
        return {name: job for name, job in self.jobs().items() if job.status == JobStatus.RUNNING}

    def gpus(self, qos: str) -> int:
        """GPUs that the running jobs of a quality of service hold."""
        return sum(sum(job.gpus_on) for job in self.running().values() if job.qos == qos)

    def clean(self) -> None:
        """Nobody runs or waits, and nothing is limited."""
        self.call("scancel", "--user=root")
        wait_until(lambda: not self.jobs(), "an empty cluster")
        self.slurm.limit("spot", "gres/gpu=-1")


def wait_until(is_so: Callable[[], object], what: str, limit_s: float = 120.0) -> float:
    """Wait until something is so; the seconds it took."""
    began_s = time.monotonic()
    while not is_so():
        assert time.monotonic() - began_s < limit_s, f"no {what} after {limit_s:g} s"
        time.sleep(0.05)
    return time.monotonic() - began_s


class Nursery:
    """Controllers that can be killed; see `slurm_controller.py`."""

    def __init__(self, lab: Lab, folder: Path) -> None:
        self.journal = folder / "journal"
        script = Path(__file__).with_name("slurm_controller.py")
        program = [sys.executable, str(script), str(lab.conf), str(self.journal)]
        self.log = folder / "controller.log"
        with self.log.open("w") as log:
            pipe = subprocess.PIPE
            self._process = subprocess.Popen(program, stdin=pipe, stdout=pipe, stderr=log, text=True)
        self._answer()

    def entries(self) -> list[dict[str, Any]]:
        """What controllers wrote into their journal."""
        lines = [json.loads(line) for line in self.journal.read_text("utf-8").splitlines()]
        return [entry for line in lines for entry in (line if isinstance(line, list) else [line])]

    def start(self, policy: str = "gfs", capacity_share: float = 0.5) -> None:
        """Kill the controller if there is one, and start another."""
        self._tell(f"start {policy} {capacity_share}")

    def kill(self) -> None:
        self._tell("kill")

    def close(self) -> None:
        self._tell("kill")
        self._process.communicate(timeout=30)

    def _tell(self, command: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{command}\n")
        self._process.stdin.flush()
        self._answer()

    def _answer(self) -> None:
        assert self._process.stdout is not None
        assert self._process.stdout.readline(), self.log.read_text("utf-8")


# Scenarios ------------------------------------------------------------------------------------------------------------


def fill(lab: Lab, count: int = NUM_NODES * 4) -> list[str]:
    """Spot jobs of two GPUs, enough for every node: tasks of an array, because that is one command."""
    array = lab.submit("spot", "--gres=gpu:2", f"--array=0-{count - 1}")
    return [f"{array}_{number}" for number in range(count)]


def gang_after_s(lab: Lab, spots: list[str], *, are_known: bool = True) -> tuple[str, float]:
    """A gang of four full nodes on a cluster that is full of spot jobs, and how long after its submission it ran.

    Slurm numbers new jobs in its database every five seconds. To end one without a number takes it 0.2 s, one after the
    other, whoever asks for it.
    """
    time.sleep(2.0)  # Slurm is slow to end what it is still launching
    if are_known:
        wait_until(lambda: set(spots) <= _in_database(lab, spots), "spot jobs in the database")
    began_s = time.monotonic()
    gang = lab.submit("hp", "--nodes=4", "--gres=gpu:8")
    wait_until(lambda: lab.call("squeue", "-h", "-t", "R", "-j", gang).strip(), "running gang")
    return gang, time.monotonic() - began_s


def _in_database(lab: Lab, names: list[str]) -> set[str]:
    arrays = {name.partition("_")[0] for name in names}
    return set(lab.call("sacct", "-nPX", "--state=RUNNING", "--format=jobid", f"--jobs={','.join(arrays)}").split())


def larger_quota_after_s(lab: Lab, nursery: Nursery) -> float:
    """How long it takes until a quota of 48 GPUs is in use, after one of 16 was."""
    nursery.start("gfs_published", 16 / 128)
    wait_until(lambda: lab.gpus("spot") == 16, "use of the first quota")
    began_s = time.monotonic()
    nursery.start("gfs_published", 48 / 128)
    wait_until(lambda: lab.gpus("spot") == 48, "use of the larger quota")
    return time.monotonic() - began_s


@dataclass(frozen=True)
class Killings:
    """What became of a full cluster whose controller was killed again and again while gangs came."""

    num_jobs_lost: int
    num_unexplained_restarts: int
    num_evicted_twice_for_one: int
    most_gpus_freed_for_one: int
    most_guaranteed_gpus: int
    num_evictions: int


def killed(lab: Lab, nursery: Nursery, num_times: int, seed: int) -> Killings:
    """Kill and replace the controller at random moments; half of its capacity of 128 GPUs may be promised."""
    chance, spots = random.Random(seed), fill(lab, 80)
    nursery.start("gfs", 0.5)
    wait_until(lambda: len(lab.running()) == 64, "full cluster")
    gangs, most_guaranteed = list[str](), 0
    for number in range(num_times):
        if number % 2 == 0:
            gangs.append(lab.submit("hp", "--nodes=2", "--gres=gpu:8", script="sleep 3"))
        time.sleep(chance.uniform(0.0, 0.6))
        nursery.start("gfs", 0.5)  # kills the one before
        most_guaranteed = max(most_guaranteed, lab.gpus("spot"))
    wait_until(lambda: _num_over(lab, gangs) == len(gangs), "end of all gangs")
    nursery.kill()
    jobs = lab.jobs()
    evicted = {(it["job"], it["restarts"], it["for"]) for it in nursery.entries() if it["do"] == "evict"}
    of_job = Counter(job for job, _ in {(job, restarts) for job, restarts, _ in evicted})
    for_gang = Counter((job, for_job) for job, _, for_job in evicted)
    return Killings(
        num_jobs_lost=len(set(spots) - set(jobs)),
        num_unexplained_restarts=sum(jobs[name].num_restarts > of_job[name] for name in spots if name in jobs),
        num_evicted_twice_for_one=sum(count - 1 for count in for_gang.values()),
        most_gpus_freed_for_one=2 * max(Counter(for_job for _, _, for_job in evicted).values(), default=0),
        most_guaranteed_gpus=max(most_guaranteed, most_ever(lab)),
        num_evictions=len(evicted),
    )


def _num_over(lab: Lab, names: list[str]) -> int:
    done = lab.call("sacct", "-nPX", "--state=COMPLETED", "--format=jobid", f"--jobs={','.join(names)}")
    return len(set(done.split()))


def most_ever(lab: Lab) -> int:
    """The most GPUs that guaranteed jobs held at any moment, from the accounting database."""
    rows = lab.slurm.past_jobs("now-1hours", "now")
    steps: Counter[int] = Counter()
    known = lab.jobs()
    for row in rows:
        name = f"{row['array']['job_id']}_{row['array']['task_id']}"
        if row["qos"] == "spot" and name in known and row["time"]["start"]:
            steps[row["time"]["start"]] += 2
            steps[row["time"]["end"] or 1 << 40] -= 2
    held, most = 0, 0
    for _, change in sorted(steps.items()):
        held += change
        most = max(most, held)
    return most
