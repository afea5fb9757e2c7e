"""Start the program of the laboratory and collect the output of its ranks, with a timeout."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

import numpy as np

from takeup.core.arrays import Floats
from takeup.errors import MissingEngine, TakeupError
from takeup.training.stragglers.contract import CallLog
from takeup.training.stragglers.watch.ring_reader import RingCollector

# Jobs of the laboratory and their records -----------------------------------------------------------------------------

LoopName = Literal["ddp", "batches", "fsdp", "pipeline", "grid", "adaptive"]


@dataclass(frozen=True, slots=True)
class SlowPeriod:
    """From iteration `first` to before `last`: a rank that computes `factor` times as long, or a link with a delay.

    A link of a pipeline is two ranks, whose messages arrive `delay_s` later. For a group whose ranks reduce together it
    is all of them: their reductions take `delay_s` longer.

    Or they are slowed from outside: with `is_stopped`, ranks do not compute longer but are stopped periodically;
    with `rate_bps`, the veth links among these ranks are limited to this rate.
    """

    ranks: tuple[int, ...]
    first: int
    last: int
    factor: float = 1.0
    delay_s: float = 0.0
    is_stopped: bool = False
    rate_bps: float = 0.0

    @property
    def kind(self) -> Literal["compute", "link"]:
        """What is slow."""
        return "link" if self.delay_s or self.rate_bps else "compute"


@dataclass(frozen=True, slots=True)
class WatchedJob:
    """A training loop on several ranks.

    `ddp`, `batches` and `fsdp` have one group of all ranks, and `batches` lets a controller change shares of the batch.
    `pipeline` is a stage for each rank; `grid` is parallel pipelines of two stages, whose equal stages reduce
    together; `adaptive` is a pipeline that replans its schedule on request. An iteration computes for `compute_s`,
    mostly sleeping.
    `is_sporadic` adds occasional calls of real jobs: a broadcast to log, a barrier, an evaluation. Messages of a
    pipeline have `num_rows` rows.
    """

    kind: LoopName
    num_ranks: int = 4
    num_iterations: int = 60
    compute_s: float = 0.02
    slow: tuple[SlowPeriod, ...] = ()
    is_sporadic: bool = False
    is_watched: bool = True
    seed: int = 1
    timeout_s: float = 120.0
    num_rows: int = 8

    def to_json(self) -> str:
        """Serialize to JSON."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> WatchedJob:
        """Parse from JSON."""
        values: dict[str, Any] = json.loads(text)
        slow = tuple(SlowPeriod(**{**each, "ranks": tuple(each["ranks"])}) for each in values.pop("slow"))
        return cls(**values, slow=slow)


@dataclass(frozen=True, slots=True)
class JobRecord:
    """Record of a job: the recorded calls, the iteration start times of every rank, and their results.

    A result is a digest of all weights; `weights` are the first of them.
    """

    logs: list[CallLog]
    starts_s: list[Floats]
    results: list[str]
    weights: list[list[float]]
    cpu_s: list[float]
    num_bad: int = 0

    @property
    def iterations_s(self) -> Floats:
        """Iteration times of the first rank, by its own clock."""
        return np.diff(self.starts_s[0])


PROGRAM = "support.watch_lab_program"
START_S, GRACE_S = 120.0, 10.0
LOOK_EVERY_S = 0.05
WhileRunning = Callable[[Path, bool], object]


def run_jobs(jobs: Sequence[WatchedJob], beside: WhileRunning = lambda place, is_over: None) -> list[JobRecord]:
    """Run the jobs and return their records in order.

    The callback is called periodically while a job runs, with the folder of its rings, and once when it is over.
    """
    if find_spec("torch") is None:
        raise MissingEngine("the laboratory needs the package 'torch'; run pip install 'takeup[torch]'")
    with TemporaryDirectory(prefix="takeup-watch-lab-") as name:
        folder = Path(name)
        (folder / "jobs").write_text("\n".join(job.to_json() for job in jobs), "utf-8")
        said = _run(folder, jobs, beside)
        return [_read(folder / str(number), job, said) for number, job in enumerate(jobs)]


def _run(folder: Path, jobs: Sequence[WatchedJob], beside: WhileRunning) -> str:
    """Run the program until it ends, with a timeout; return its output."""
    until_s = time.monotonic() + START_S + sum(job.timeout_s for job in jobs)
    paths = os.pathsep.join([str(Path(__file__).parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1", "PYTHONPATH": paths}
    command = [sys.executable, "-m", PROGRAM, str(folder)]
    with (folder / "errors").open("w+", encoding="utf-8") as errors:
        program = subprocess.Popen(command, env=environment, stdout=errors, stderr=errors, start_new_session=True)
        try:
            for number in range(len(jobs)):
                while not (is_over := (folder / str(number) / "over").exists() or program.poll() is not None):
                    if time.monotonic() > until_s:
                        raise TakeupError("the laboratory took too long; try it with fewer iterations")
                    beside(folder / str(number), False)
                    time.sleep(LOOK_EVERY_S)
                beside(folder / str(number), is_over)
        finally:
            if program.poll() is None and (folder / str(len(jobs) - 1) / "over").exists():
                program.wait(GRACE_S)
            with suppress(ProcessLookupError):
                os.killpg(program.pid, signal.SIGKILL)
            program.wait()
        errors.seek(0)
        return errors.read()


def _read(place: Path, job: WatchedJob, said: str) -> JobRecord:
    paths = [place / f"{rank}.json" for rank in range(job.num_ranks)]
    if not all(path.exists() for path in paths):
        last = (said.strip().splitlines() or ["a rank ended without a word"])[-1]
        raise TakeupError(f"the {job.kind} job failed: {last}; try it with fewer ranks or a longer timeout")
    seen = [json.loads(path.read_text("utf-8")) for path in paths]
    logs, num_bad = _logs(place)
    return JobRecord(
        logs,
        [np.array(each["starts_s"]) for each in seen],
        [each["result"] for each in seen],
        [each["weights"] for each in seen],
        [each["cpu_s"] for each in seen],
        num_bad,
    )


def _logs(place: Path) -> tuple[list[CallLog], int]:
    gather = RingCollector(place)
    gather.poll()
    return (gather.read() if gather.readers else []), gather.num_bad
