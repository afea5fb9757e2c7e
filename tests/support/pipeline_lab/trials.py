"""Trials of the laboratory and their outcomes, and the process that runs them, with a timeout."""

import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from threading import Timer
from typing import Literal

from takeup.core.extras import need
from takeup.errors import MissingEngine, TakeupError
from takeup.training.pipelines.profile import Profile

# Trials of the laboratory and their outcomes --------------------------------------------------------------------------

RuntimeName = Literal["stock_1f1b", "stock", "adaptive"]


@dataclass(frozen=True, slots=True)
class LabTrial:
    """Iterations of one pipeline, with stages and links as given by `truth`.

    `stock_1f1b` is PyTorch's `Schedule1F1B`, `stock` its runtime with the given `order`, `adaptive` our schedule, which
    starts with ZB-H1 (or with `order`) and replans every `every` iterations. With `max_sends=1` in the truth, a rank
    that sends over a slow link computes nothing until its message has been sent, unless a delegate sends.
    With `beside_stock` every iteration is also run by PyTorch's runtime with the given order, alternating in the same
    processes, so that both see the same machine. With `cables` every rank has a network namespace, messages are long,
    and the service time of a link is set by the bandwidth of a veth pair.
    """

    name: str
    runtime: RuntimeName
    truth: Profile
    order: str = ""
    num_iterations: int = 5
    every: int = 2
    planner: str = "adaptra"
    timeout_s: float = 60.0
    beside_stock: bool = False
    cables: bool = False


@dataclass(frozen=True, slots=True)
class TrialOutcome:
    """Iteration times over all ranks, and the measurements and changes of the adaptive schedule.

    `gradient_error` is the largest difference from a single process, relative to the largest gradient. `pauses_s` is
    the time the slowest rank spent planning, comparing and switching, per agreement; `swaps_s` only the switching.
    `cpus_s` is the CPU time of every iteration, mean of all ranks; `stock_s` and `stock_cpus_s` are of the stock runs.
    """

    name: str
    iterations_s: tuple[float, ...]
    gradient_error: float
    order: str = ""
    changed_after: tuple[int, ...] = ()
    delegated: tuple[int, ...] = ()
    measured: Profile | None = None
    pauses_s: tuple[float, ...] = ()
    swaps_s: tuple[float, ...] = ()
    cpus_s: tuple[float, ...] = ()
    stock_s: tuple[float, ...] = ()
    stock_cpus_s: tuple[float, ...] = ()

    @property
    def settled_s(self) -> float:
        """Median iteration time after the last schedule change, without the first, which also connects ranks."""
        return median(self.iterations_s[max((1, *self.changed_after)) :])


# Start the program of the laboratory and collect the outcomes of its trials, with a timeout ---------------------------

TESTS = Path(__file__).parents[2]
PROGRAM = "support.pipeline_lab.program"
LOOPBACK = {"linux": "lo", "darwin": "lo0"}
START_S = 120.0  # to import PyTorch on a busy machine


def run_trials(trials: Sequence[LabTrial], tick: Callable[[], object] = lambda: None) -> list[TrialOutcome]:
    """Run the trials and return their outcomes in order; `tick` is called after each."""
    _check()
    with TemporaryDirectory(prefix="takeup-lab-") as name:
        folder = Path(name)
        (folder / "trials").write_bytes(pickle.dumps(list(trials)))
        said = _watch(folder, START_S + sum(trial.timeout_s for trial in trials), tick)
        return [_read(folder / str(number) / "outcome", trial, said) for number, trial in enumerate(trials)]


def _check() -> None:
    need("the laboratory", "torch")
    if sys.platform not in LOOPBACK:
        raise MissingEngine(f"the laboratory needs processes that fork, which {sys.platform} has not; use Linux")


def _command(folder: Path) -> list[str]:
    return [sys.executable, "-m", PROGRAM, str(folder)]


def _watch(folder: Path, limit_s: float, tick: Callable[[], object]) -> str:
    """Run the program until it ends or times out; return its stderr."""
    paths = os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": LOOPBACK[sys.platform], "OMP_NUM_THREADS": "1"}
    environment["PYTHONPATH"] = paths
    with (folder / "errors").open("w+", encoding="utf-8") as errors:
        program = subprocess.Popen(
            _command(folder), stdout=subprocess.PIPE, stderr=errors, env=environment, text=True, start_new_session=True
        )
        timer = Timer(limit_s, _end, (program.pid,))
        timer.start()
        try:
            assert program.stdout is not None
            for _ in program.stdout:
                tick()
        finally:
            timer.cancel()
            _end(program.pid)
            program.communicate()
        errors.seek(0)
        return errors.read()


def _end(number: int) -> None:
    """Kill the process group: the program and any remaining ranks."""
    with suppress(ProcessLookupError):
        os.killpg(number, signal.SIGKILL)


def _read(path: Path, trial: LabTrial, said: str) -> TrialOutcome:
    outcome = pickle.loads(path.read_bytes()) if path.exists() else said  # our own bytes
    if isinstance(outcome, TrialOutcome):
        return outcome
    last = (str(outcome).strip().splitlines() or ["it was silent"])[-1]
    raise TakeupError(f"the trial {trial.name!r} failed: {last}; try it with fewer iterations or a longer timeout")
