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
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from takeup.errors import MissingEngine, TakeupError
from takeup.training.engines.pytorch.watch.gather import RingCollector
from takeup.training.engines.pytorch.watch.lab.jobs import JobRecord, WatchedJob
from takeup.training.model.calls import CallLog

PROGRAM = "takeup.training.engines.pytorch.watch.lab.program"
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
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
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
