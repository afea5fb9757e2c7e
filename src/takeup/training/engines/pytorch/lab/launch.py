"""Start the program of the laboratory and collect the outcomes of its trials, with a timeout."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Timer

from takeup.errors import MissingEngine, TakeupError
from takeup.training.engines.pytorch.lab.trials import LabTrial, TrialOutcome

PROGRAM = "takeup.training.engines.pytorch.lab.program"
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
    if find_spec("torch") is None:
        raise MissingEngine("the laboratory needs the package 'torch'; run pip install 'takeup[torch]'")
    if sys.platform not in LOOPBACK:
        raise MissingEngine(f"the laboratory needs processes that fork, which {sys.platform} has not; use Linux")


def _command(folder: Path) -> list[str]:
    return [sys.executable, "-m", PROGRAM, str(folder)]


def _watch(folder: Path, limit_s: float, tick: Callable[[], object]) -> str:
    """Run the program until it ends or times out; return its stderr."""
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": LOOPBACK[sys.platform], "OMP_NUM_THREADS": "1"}
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
