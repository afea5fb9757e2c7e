"""Record real jobs, watched live: `python -m benchmarks.training stragglers-record FOLDER [--healthy 7200]`.

Four Gloo ranks of PyTorch on this machine, with all its noise; some jobs become slow on purpose, some never. Writes one
small file for each with the times of its iterations as the calls tell them, which of them were made slow, and what was
said of them live. `--only healthy-ddp,slow-grid` records only these. Then `stragglers.py --part recorded --from FOLDER`
counts false alarms. In a job that nobody made slow, whoever blames a rank or a link is wrong. That the machine is busy,
or that all ranks became slower, is wrong unless it is so: from when it is said to have begun until it was told,
iterations must have taken a tenth longer, in the median, than those of the whole job. What is true is counted beside.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np

from support.watch_lab import LoopName, SlowPeriod, WatchedJob, run_jobs
from takeup.core.report import Cell, Check, Column, Table
from takeup.training.stragglers.remedy.remediation import WatchSettings
from takeup.training.stragglers.watch.session import WatchSession

COMPUTE_S = 0.012
NUM_SLOW_JOB, FIRST, END = 400, 150, 280
TIMEOUT_S = 900.0
REAL = 1.1  # times the median: a slowdown that is one


def jobs_of(num_healthy: int) -> dict[str, WatchedJob]:
    """Healthy jobs and slow ones, of every kind that has a clock of its own."""
    slow = (SlowPeriod((2,), FIRST, END, factor=1.6),)
    numbers: dict[LoopName, int] = {"ddp": num_healthy, "fsdp": num_healthy // 12, "pipeline": num_healthy // 3}
    healthy = {
        f"healthy-{kind}": WatchedJob(kind, 4, number, COMPUTE_S, is_sporadic=True, timeout_s=TIMEOUT_S)
        for kind, number in numbers.items()
    }
    return {
        **healthy,
        "slow-ddp": WatchedJob("ddp", 4, NUM_SLOW_JOB, COMPUTE_S, slow, is_sporadic=True),
        "slow-grid": WatchedJob("grid", 4, NUM_SLOW_JOB, COMPUTE_S, slow, is_sporadic=True),
    }


class Live:
    """Watches a job while it runs, and keeps the times of all its iterations."""

    def __init__(self, place: Path) -> None:
        self.session: WatchSession = WatchSession(place, WatchSettings(rebalance=False))
        self.times_s: list[float] = []

    def poll(self) -> None:
        """Take in what is new."""
        self.session.poll()
        watcher = self.session.watcher
        new = watcher.num_iterations - len(self.times_s)
        latest_s = list(watcher.iterations_s)[-new:] if new else []
        self.times_s += [math.nan] * (new - len(latest_s)) + latest_s  # it keeps but the latest, if we come late


def write(path: Path, job: WatchedJob, live: Live) -> str:
    """Times from the calls of all ranks, in the numbering of the loop, which is ahead by what was heard too early."""
    missing = job.num_iterations - 1 - len(live.times_s)
    truth = [(max(0, slow.first - missing), slow.last - missing) for slow in job.slow]
    slow = [finding.event for finding in live.session.findings if finding.event.is_slow]
    np.savez_compressed(
        path,
        iterations_s=np.array(live.times_s),
        truth=np.array(truth, np.int64).reshape(-1, 2),
        spans=np.array([(event.began, event.declared) for event in slow], np.int64).reshape(-1, 2),
        blames=np.array([any(each.kind != "host" for each in event.suspects) for event in slow], np.bool_),
    )
    said = "; ".join(event.sentence() for event in slow) or "nothing"
    return f"{len(live.times_s)} iterations; said live: {said}"


def record(jobs: dict[str, WatchedJob], folder: Path) -> None:
    """Run the jobs and write what came of each."""
    lives: dict[str, Live] = {}

    def beside(place: Path, _: bool) -> None:
        if place.exists():
            lives.setdefault(place.name, Live(place)).poll()

    run_jobs(list(jobs.values()), beside)
    for number, (name, job) in enumerate(jobs.items()):
        print(f"{name}: {write(folder / f'{name}.npz', job, lives[str(number)])}")


def recorded(tick: Callable[[], object], options: argparse.Namespace) -> tuple[list[Table], list[Check]]:
    """What was said live of the healthy jobs in a folder."""
    rows: list[tuple[Cell, ...]] = []
    for path in sorted(options.folder.glob("healthy-*.npz")):
        with np.load(path, allow_pickle=False) as arrays:
            times_s, spans, blames = (arrays[name] for name in ("iterations_s", "spans", "blames"))
        slowest, usual = np.nanquantile(times_s, (0.99, 0.5))
        are_slow = [bool(np.nanmedian(times_s[began : declared + 1]) >= REAL * usual) for began, declared in spans]
        num_true = sum(is_slow and not is_blame for is_slow, is_blame in zip(are_slow, blames, strict=True))
        blamed = int(blames.sum())
        rows.append((path.stem, len(times_s), 1e3 * usual, slowest / usual, num_true, blamed, len(spans) - num_true))
    tick()
    total, num_false = (sum(int(str(row[column])) for row in rows) for column in (1, 6))
    columns = (
        Column("job"),
        Column("iterations", "", 0),
        Column("median", "ms", 1),
        Column("99 % of iterations below", "x", 1),
        Column("slow for real, nobody blamed", "", 0),
        Column("rank or link blamed", "", 0),
        Column("false alarms", "", 0),
    )
    return [Table("Said live of healthy jobs on a noisy machine", columns, tuple(rows))], [
        Check.at_least("iterations", total, 10_000),
        Check.at_most("false alarms", 1e4 * num_false / max(1, total), 1.0, unit="in 10,000 iterations"),
    ]


def main() -> int:
    """Run the jobs and write what came of them."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--healthy", type=int, default=7200, metavar="N", help="iterations of the longest healthy job")
    parser.add_argument("--only", default="", metavar="NAMES", help="of the jobs, separated by commas")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    jobs = jobs_of(options.healthy)
    names = options.only.split(",") if options.only else list(jobs)
    if unknown := sorted(set(names) - set(jobs)):
        parser.error(f"there is no job {unknown[0]!r}; choose from {', '.join(jobs)}")
    record({name: jobs[name] for name in names}, options.folder)
    return 0
