"""The parts of benchmarks/stragglers.py that need real ranks: Gloo processes of PyTorch on this machine.

iterations   times of iterations read from calls alone, against the loop's own clock, with sporadic calls in between
overhead     what noting costs: processor time of a call, and its share of an iteration

Ranks are asleep for most of an iteration, so that two cores suffice; links are slow below the hook. Nothing leads from
whoever makes a job slow to whoever watches.
"""

from __future__ import annotations

import os
import subprocess
import sys
from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import numpy as np

from takeup.core.report import Cell, Check, Column, Table
from takeup.training.engines.pytorch.watch.lab import Job, run_jobs
from takeup.training.model.calls import CallLog
from takeup.training.policies.stragglers.watcher import Watcher

__all__ = ["iterations", "overhead"]

Part = tuple[list[Table], list[Check]]
Tick = Callable[[], object]
COMPUTE_S = 0.06
NUM_PORTIONS = 40
MOST_ERROR, MOST_SHARE, MOST_CALL_US = 0.01, 0.005, 20.0


# Times of iterations --------------------------------------------------------------------------------------------------


def iterations(tick: Tick, options: Namespace) -> Part:
    """How far iteration times are off."""
    jobs = [Job(kind, 4, 100, COMPUTE_S, is_sporadic=True) for kind in ("ddp", "batches", "fsdp", "pipeline", "grid")]
    rows: list[tuple[Cell, ...]] = []
    for job, recorded in zip(jobs, run_jobs(jobs), strict=True):
        watcher = Watcher()
        for logs in _in_time(recorded.logs):
            watcher.see(logs)
        truth_s = recorded.iterations_s[-len(watcher.iterations_s) :]
        ours_s = np.array(watcher.iterations_s)[-len(truth_s) :]
        number = len(ours_s)
        error = abs(float(np.mean(ours_s)) / float(np.mean(truth_s)) - 1) if number else 1.0
        calls = len(recorded.logs[0].calls) / job.num_iterations
        rows.append((job.kind, calls, number, 1e3 * float(np.mean(truth_s)), 100 * error))
    tick()
    columns = (
        Column("loop"),
        Column("calls an iteration", "", 1),
        Column("iterations", "", 0),
        Column("mean", "ms", 2),
        Column("error", "%", 2),
    )
    worst = max(float(str(row[-1])) for row in rows)
    note = "with a broadcast every 10 iterations, a barrier every 40 and an evaluation every 50"
    return [Table("Times of iterations, from calls alone", columns, tuple(rows), note)], [
        Check.at_most("largest error of the mean iteration time", worst, 100 * MOST_ERROR, unit="%")
    ]


def _in_time(logs: Sequence[CallLog]) -> Iterator[list[CallLog]]:
    """The logs in portions, by the time at which calls ended."""
    latest = [np.maximum(log.calls["began_ns"], log.calls["ended_ns"]) for log in logs]
    moments = np.linspace(min(each.min() for each in latest), max(each.max() for each in latest), NUM_PORTIONS)
    done = [0] * len(logs)
    for moment in moments:
        ends = [int(np.searchsorted(np.maximum.accumulate(each), moment, "right")) for each in latest]
        yield [CallLog(log.rank, log.calls[a:b], log.groups) for log, a, b in zip(logs, done, ends, strict=True)]
        done = ends


# What it costs --------------------------------------------------------------------------------------------------------

CALLS = """
import sys, time, torch, torch.distributed as dist
from pathlib import Path
torch.set_num_threads(1)
if sys.argv[1] == "watched":
    from takeup.training.engines.pytorch.watch.hook import install
    install(Path(sys.argv[2]))
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
tensor, rounds = torch.ones(256), []
for is_async in (False, True):
    rounds = []
    for _ in range(15):
        start_s = time.process_time()
        for _ in range(400):
            work = dist.all_reduce(tensor, async_op=is_async)
            if is_async:
                work.wait()
        rounds.append((time.process_time() - start_s) / 400)
    print(1e6 * min(rounds))
dist.destroy_process_group()
"""


def overhead(tick: Tick, options: Namespace) -> Part:
    """Processor time of a noted call, and its share of an iteration."""
    with TemporaryDirectory() as name:
        plain_us, watched_us = (_calls_us(mode, Path(name)) for mode in ("plain", "watched"))
    added_us = [watched - plain for watched, plain in zip(watched_us, plain_us, strict=True)]
    rows: list[tuple[Cell, ...]] = []
    jobs = [Job(kind, 4, 40, COMPUTE_S) for kind in ("ddp", "fsdp", "pipeline")]
    for job, recorded in zip(jobs, run_jobs(jobs), strict=True):
        calls = max(len(log.calls) for log in recorded.logs) / job.num_iterations
        iteration_s = median(recorded.iterations_s.tolist())
        share = calls * max(added_us) / 1e6 / iteration_s
        rows.append((job.kind, calls, 1e3 * iteration_s, calls * max(added_us), 100 * share))
    tick()
    columns = (
        Column("loop"),
        Column("calls an iteration", "", 1),
        Column("iteration", "ms", 1),
        Column("noting", "us", 0),
        Column("share", "%", 3),
    )
    costs = Table(
        "A call over Gloo, one rank, processor time",
        (Column("call"), Column("alone", "us", 1), Column("noted", "us", 1), Column("added", "us", 1)),
        tuple(zip(("waited for at once", "by its future"), plain_us, watched_us, added_us, strict=True)),
    )
    shares = Table("What noting costs an iteration", columns, tuple(rows))
    return [costs, shares], [
        Check.at_most("noting a call that is waited for at once", added_us[0], MOST_CALL_US, unit="us"),
        Check.at_most(
            "largest share of an iteration", max(float(str(row[-1])) for row in rows), 100 * MOST_SHARE, unit="%"
        ),
    ]


def _calls_us(mode: str, folder: Path) -> list[float]:
    """Processor time of one call, waited for at once and by its future."""
    command = [sys.executable, "-c", CALLS, mode, str(folder)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    ran = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    return [float(line) for line in ran.stdout.split()]
