"""The part `restart` of benchmarks/stragglers.py: what it costs to save a slow job and start it anew by torchrun.

The example examples/train_ddp.py on four ranks, one of which is made slow from outside of the script and of whoever
watches it (tests/training/watch/injector). The watch, which knows only its calls, asks for a restart after a loss of
half a second; torchrun starts the ranks anew, and they go on from the checkpoint. The cost is the time from the request
to the first calls of the new ranks. A job that nobody makes slow or restarts must end with the same loss.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from takeup.core.report import Cell, Check, Column, Table
from takeup.errors import TakeupError

__all__ = ["restart"]

ROOT = Path(__file__).parents[1]
JOB = ["torch.distributed.run", "--standalone", "--max-restarts", "1", "--nproc-per-node", "4"]
JOB += [str(ROOT / "examples" / "train_ddp.py"), "--steps", "70", "--microbatch-ms", "8", "--checkpoint"]
WATCH = ["-m", "takeup", "training", "watch", "--no-action", "--restart-after", "0.5", "--", sys.executable, "-m"]
INJECTOR = ROOT / "tests" / "training" / "watch" / "injector"
INJECTED = {"INJECTED_RANK": "1", "INJECTED_FACTOR": "4", "INJECTED_AFTER": "240", "PYTHONPATH": str(INJECTOR)}
NUM_JOBS = 2
MOST_S = 60.0  # what the paper says of a change of topology, whose state stays in memory
TIMEOUT_S = 220.0


def restart(tick: Callable[[], object], options: Namespace) -> tuple[list[Table], list[Check]]:
    """How long ranks are away, and whether the job computes the same."""
    with TemporaryDirectory(prefix="takeup-restart-") as name:
        alone = _ran(["-m"], Path(name, "alone"), {})
        watched = [_ran(WATCH, Path(name, str(number)), INJECTED) for number in range(NUM_JOBS)]
        sizes = [Path(name, str(number)).stat().st_size for number in range(NUM_JOBS)]
    tick()
    loss = _said(r"loss (\S+)", alone)
    rows: list[tuple[Cell, ...]] = [
        (
            f"restarted, {number + 1}",
            float(_said(r"after a loss of (\S+) s", said)),
            float(_said(r"came back after (\S+) s", said)),
            sizes[number] / 1e3,
            _said(r"steps, 4 ranks, loss (\S+)", said) == loss,
        )
        for number, said in enumerate(watched)
    ]
    columns = (
        Column("job"),
        Column("lost before", "s", 2),
        Column("ranks back after", "s", 2),
        Column("checkpoint", "kB", 1),
        Column("same loss as alone"),
    )
    return [Table("Saved and started anew by torchrun", columns, tuple(rows))], [
        Check.at_most("ranks are back after, median", median(float(str(row[2])) for row in rows), MOST_S, unit="s"),
        Check.at_least("jobs with the same loss as alone", sum(bool(row[-1]) for row in rows), NUM_JOBS),
    ]


def _ran(before: Sequence[str], checkpoint: Path, environment: Mapping[str, str]) -> str:
    """What the job and whoever watched it said."""
    everything = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", **environment}
    command = [sys.executable, *before, *JOB, str(checkpoint)]
    ran = subprocess.run(command, env=everything, capture_output=True, text=True, check=False, timeout=TIMEOUT_S)
    if ran.returncode:
        raise TakeupError(f"the job ended with {ran.returncode}: {ran.stderr.strip().splitlines()[-1:]}")
    return ran.stdout + ran.stderr


def _said(pattern: str, said: str) -> str:
    found = re.search(pattern, said)
    if found is None:
        raise TakeupError(f"nothing like {pattern!r} was said; try again on a machine that is less busy")
    return found.group(1).rstrip(",;")
