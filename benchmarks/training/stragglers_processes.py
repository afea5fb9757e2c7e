"""The parts of benchmarks/training/stragglers.py that need real ranks: Gloo processes of PyTorch on this machine.

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

from support.watch_lab import JobRecord, WatchedJob, run_jobs
from takeup.core.report import Cell, Check, Column, Table
from takeup.training.stragglers.contract import CallLog, Operation
from takeup.training.stragglers.detect.detector import StragglerDetector

Part = tuple[list[Table], list[Check]]
Tick = Callable[[], object]
COMPUTE_S = 0.06
NUM_PORTIONS = 40
MOST_ERROR, MOST_SHARE, MOST_CALL_US = 0.01, 0.005, 20.0
CALLED = ("waited for at once", "by its future", "from C++", "message")


# Times of iterations --------------------------------------------------------------------------------------------------


def iterations(tick: Tick, options: Namespace) -> Part:
    """How far iteration times are off."""
    jobs = [
        WatchedJob(kind, 4, 100, COMPUTE_S, is_sporadic=True) for kind in ("ddp", "batches", "fsdp", "pipeline", "grid")
    ]
    rows: list[tuple[Cell, ...]] = []
    for job, recorded in zip(jobs, run_jobs(jobs), strict=True):
        watcher = StragglerDetector()
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
mode, folder, rank, num_ranks = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
torch.set_num_threads(1)
if mode == "watched":
    from takeup.training.stragglers.watch.hook import install
    install(folder)
store = dist.FileStore(str(folder / f"{mode}-{num_ranks}"), num_ranks)
dist.init_process_group("gloo", store=store, rank=rank, world_size=num_ranks)
tensor = torch.ones(256)

def at_once():
    dist.all_reduce(tensor)

def by_its_future():
    dist.all_reduce(tensor, async_op=True).wait()

def as_from_c():  # named arguments take the way through the dispatcher that calls of C++ take
    options.asyncOp = True
    dist.group.WORLD.allreduce([tensor], opts=options).wait()

options = dist.AllreduceOptions()
def there_and_back():
    for post in (dist.isend, dist.irecv)[:: 1 if rank == 0 else -1]:
        post(tensor, 1 - rank).wait()

# For messages no thread is added to Gloo's own, and that one turns round for as long as it likes.
messages, collectives = ((there_and_back, 2, time.thread_time),), (
    (at_once, 1, time.process_time),
    (by_its_future, 1, time.process_time),
    (as_from_c, 1, time.process_time),
)
for call, num_calls, clock in messages if num_ranks == 2 else collectives:
    rounds = []
    for _ in range(15):
        start_s = clock()
        for _ in range(400):
            call()
        rounds.append((clock() - start_s) / 400 / num_calls)
    if rank == 0:
        print(1e6 * min(rounds))
dist.barrier()
dist.destroy_process_group()
"""


def overhead(tick: Tick, options: Namespace) -> Part:
    """Processor time of a noted call, and its share of an iteration: every kind of call at its own price."""
    with TemporaryDirectory() as name:
        plain_us, watched_us = (_calls_us(mode, Path(name)) for mode in ("plain", "watched"))
    added_us = [watched - plain for watched, plain in zip(watched_us, plain_us, strict=True)]
    jobs = [WatchedJob(kind, 4, 40, COMPUTE_S) for kind in ("ddp", "fsdp", "pipeline")]
    in_python_us, in_c_us, message_us = max(added_us[:2]), max(added_us[:3]), added_us[3]
    rows = [
        _share_of(job, recorded, in_python_us if job.kind == "fsdp" else in_c_us, message_us)
        for job, recorded in zip(jobs, run_jobs(jobs), strict=True)
    ]
    tick()
    costs = Table(
        "A call over Gloo, processor time of one rank",
        (Column("call"), Column("alone", "us", 1), Column("noted", "us", 1), Column("added", "us", 1)),
        tuple(zip(CALLED, plain_us, watched_us, added_us, strict=True)),
        "by its future and from C++: somebody waits later, so a thread of the watch waits as well",
    )
    columns = (
        Column("loop"),
        Column("collectives an iteration", "", 1),
        Column("messages an iteration", "", 1),
        Column("iteration", "ms", 1),
        Column("noting", "us", 0),
        Column("share", "%", 3),
    )
    note = "the rank with the dearest calls; collectives of FSDP at the higher price of Python's, of others of all"
    shares = Table("What noting costs an iteration", columns, tuple(rows), note)
    return [costs, shares], [
        Check.at_most("noting a call that is waited for at once", added_us[0], MOST_CALL_US, unit="us"),
        Check.at_most(
            "largest share of an iteration", max(float(str(row[-1])) for row in rows), 100 * MOST_SHARE, unit="%"
        ),
    ]


def _share_of(job: WatchedJob, recorded: JobRecord, collective_us: float, message_us: float) -> tuple[Cell, ...]:
    """What noting costs the rank of a job that has most of it."""
    iteration_s = median(recorded.iterations_s.tolist())
    costs = []
    for log in recorded.logs:
        messages = np.count_nonzero(log.calls["operation"] >= Operation.SEND) / job.num_iterations
        collectives = len(log.calls) / job.num_iterations - messages
        costs.append((collectives * collective_us + messages * message_us, collectives, messages))
    noting_us, collectives, messages = max(costs)
    return job.kind, collectives, messages, 1e3 * iteration_s, noting_us, 100 * noting_us / 1e6 / iteration_s


def _calls_us(mode: str, folder: Path) -> list[float]:
    """Processor time of one call, of each kind."""
    return [*_ranks_us(mode, folder, 1), *_ranks_us(mode, folder, 2)]


def _ranks_us(mode: str, folder: Path, num_ranks: int) -> list[float]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", CALLS, mode, str(folder), str(rank), str(num_ranks)],
            env=environment,
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(num_ranks)
    ]
    said = [rank.communicate()[0] for rank in ranks]
    if any(rank.returncode for rank in ranks):
        raise RuntimeError(f"a rank that makes calls ended with {[rank.returncode for rank in ranks]}")
    return [float(line) for line in said[0].split()]
