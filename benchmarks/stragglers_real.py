"""The parts of benchmarks/stragglers.py that need real ranks: Gloo processes of PyTorch on this machine.

iterations   times of iterations read from calls alone, against the loop's own clock, with sporadic calls in between
locate       who is slow, without a pause: a rank or a link, drawn at random, on 4 to 8 ranks
recovery     one rank of four computes 1.5 times as long: throughput with and without other shares of the batch
overhead     what noting costs: processor time of a call, and its share of an iteration

Ranks are asleep for most of an iteration, so that two cores suffice; links are slow below the hook. Nothing leads from
whoever makes a job slow to whoever watches.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import numpy as np

from takeup.core.report import Cell, Check, Column, Table
from takeup.core.seeds import Streams
from takeup.training.engines.pytorch.watch.lab import Job, Recorded, Slow, run_jobs
from takeup.training.engines.pytorch.watch.session import Session, Settings
from takeup.training.experiment.watch import new_session
from takeup.training.model.calls import CallLog
from takeup.training.model.slowdowns import Event
from takeup.training.policies.stragglers.watcher import Watcher

__all__ = ["PARTS"]

Part = tuple[list[Table], list[Check]]
Tick = Callable[[], object]
SEED = 7
COMPUTE_S = 0.06
NUM_PORTIONS = 40
FIRST, END = 40, 68  # iterations that are slow, of those who are located
MOST_ERROR, LEAST_NAMED, LEAST_RECOVERED, MOST_SHARE, MOST_CALL_US = 0.01, 0.95, 0.6, 0.005, 20.0


# Times of iterations --------------------------------------------------------------------------------------------------


def iterations(tick: Tick) -> Part:
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


# Who is slow ----------------------------------------------------------------------------------------------------------


def locate(tick: Tick) -> Part:
    """Which share of slow ranks and links is named, without a pause."""
    jobs = _drawn_jobs(Streams(SEED).stream("locate"))
    rows: list[tuple[Cell, ...]] = []
    for job, recorded in zip(jobs, run_jobs(jobs), strict=True):
        truth = job.slow[0]
        event = _first_slow(recorded)
        named = event.suspects[0] if event is not None and event.suspects else None
        found = "nobody" if named is None else f"{named.kind} {_listed(named.ranks)}"
        is_right = named is not None and (named.kind, set(named.ranks)) == (truth.kind, set(truth.ranks))
        late = None if event is None else event.declared - truth.first
        rows.append((job.kind, job.num_ranks, f"{truth.kind} {_listed(truth.ranks)}", found, late, is_right))
    tick()
    columns = (
        Column("loop"),
        Column("ranks", "", 0),
        Column("slow"),
        Column("named"),
        Column("delay", "iterations", 0),
        Column("right"),
    )
    share = sum(bool(row[-1]) for row in rows) / len(rows)
    return [Table("Who is slow, without a pause", columns, tuple(rows))], [
        Check.at_least("share of slow ranks and links named right", share, LEAST_NAMED)
    ]


def _drawn_jobs(random: np.random.Generator) -> list[Job]:
    """Ranks and links that become slow: both kinds on every loop that has them."""
    jobs = []
    for number in range(8):
        kind, num_ranks = (("ddp", 4), ("fsdp", 4), ("pipeline", 4), ("grid", 8))[number % 4]
        rank, factor = int(random.integers(num_ranks)), float(random.uniform(1.4, 2.5))
        jobs.append(_job(kind, num_ranks, Slow((rank,), FIRST, END, factor=factor)))
    for number in range(5):
        kind, num_ranks = (("pipeline", 4), ("grid", 4), ("pipeline", 6))[number % 3]
        link = int(random.integers(num_ranks - 1)) if kind == "pipeline" else 2 * int(random.integers(num_ranks // 2))
        delay_s = float(random.uniform(0.015, 0.03))
        jobs.append(_job(kind, num_ranks, Slow((link, link + 1), FIRST, END, delay_s=delay_s)))
    stage = int(random.integers(2))
    jobs.append(_job("grid", 8, Slow(tuple(range(stage, 8, 2)), FIRST, END, delay_s=0.03)))
    return jobs


def _job(kind: str, num_ranks: int, slow: Slow) -> Job:
    return Job(kind, num_ranks, END, COMPUTE_S, (slow,), is_sporadic=True)  # type: ignore[arg-type]


def _first_slow(recorded: Recorded) -> Event | None:
    """What a watcher says who hears of calls as they are made."""
    watcher = Watcher()
    events = (event for logs in _in_time(recorded.logs) for event in watcher.see(logs))
    return next((event for event in events if event.is_slow), None)


def _in_time(logs: Sequence[CallLog]) -> Iterator[list[CallLog]]:
    """The logs in portions, by the time at which calls ended."""
    latest = [np.maximum(log.calls["began_ns"], log.calls["ended_ns"]) for log in logs]
    moments = np.linspace(min(each.min() for each in latest), max(each.max() for each in latest), NUM_PORTIONS)
    done = [0] * len(logs)
    for moment in moments:
        ends = [int(np.searchsorted(np.maximum.accumulate(each), moment, "right")) for each in latest]
        yield [CallLog(log.rank, log.calls[a:b], log.groups) for log, a, b in zip(logs, done, ends, strict=True)]
        done = ends


def _listed(ranks: Sequence[int]) -> str:
    return " ".join(map(str, ranks))


# Less work for the slow -----------------------------------------------------------------------------------------------


def recovery(tick: Tick) -> Part:
    """Throughput of a job of which one rank becomes slow, with and without other shares."""
    healthy = Job("batches", 4, 60, 2 * COMPUTE_S)
    slow = Job("batches", 4, 160, 2 * COMPUTE_S, (Slow((2,), FIRST, 1_000, factor=1.5),))
    sessions: dict[str, Session] = {}

    def beside(place: Path, _: bool) -> None:
        if place.name not in sessions:
            sessions[place.name] = new_session(place, Settings(rebalance=place.name == "2"))
        sessions[place.name].look()

    recorded = run_jobs([healthy, slow, slow], beside)
    iterations_s = [median(each.iterations_s[-40:].tolist()) for each in recorded]
    rates = [1 / each_s for each_s in iterations_s]
    share = (rates[2] - rates[1]) / (rates[0] - rates[1])
    names = ("healthy", "one rank 1.5x slower", "the same, with other shares")
    said = ["", *(_said(sessions[number]) for number in ("1", "2"))]
    rows = [
        (name, 1e3 * each_s, rate, text)
        for name, each_s, rate, text in zip(names, iterations_s, rates, said, strict=True)
    ]
    tick()
    columns = (Column("job"), Column("iteration", "ms", 1), Column("rate", "1/s", 2), Column("last event"))
    return [Table("A slow rank gets less work", columns, tuple(rows))], [
        Check.at_least("share of the lost throughput that came back", share, LEAST_RECOVERED)
    ]


def _said(session: Session) -> str:
    return session.findings[-1].sentence() if session.findings else "none"


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


def overhead(tick: Tick) -> Part:
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


PARTS: dict[str, Callable[[Tick], Part]] = {
    "iterations": iterations,
    "locate": locate,
    "recovery": recovery,
    "overhead": overhead,
}
