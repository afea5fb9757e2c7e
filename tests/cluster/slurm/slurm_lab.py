"""The lab as tests use it: submit, look, wait, clean up, and a controller that can be killed."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from takeup.cluster.engines.slurm import Slurm
from takeup.cluster.engines.slurm.commands import caller
from takeup.cluster.engines.slurm.rows import JobRow, Status, read_job

SCRIPT = Path(__file__).parents[3] / "scripts" / "slurm-lab"
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
        done = subprocess.run(texts, check=False, capture_output=True, text=True, env=environment, timeout=60)
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
        return {job.id: job for job in rows if job.status != Status.OVER}

    def running(self) -> dict[str, JobRow]:
        return {name: job for name, job in self.jobs().items() if job.status == Status.RUNNING}

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
