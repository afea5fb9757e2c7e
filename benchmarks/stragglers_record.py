"""Record real jobs for `stragglers.py --recorded`: `python benchmarks/stragglers_record.py FOLDER [--healthy 2000]`.

Four Gloo ranks of PyTorch on this machine, with all its noise; some jobs become slow on purpose, some never. Writes one
small file for each with the times of its iterations as the calls tell them, and which of them were made slow.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np

from takeup.training.engines.pytorch.watch.lab import Job, Recorded, Slow, run_jobs
from takeup.training.policies.stragglers.watcher import Watcher

COMPUTE_S = 0.012
NUM_SLOW_JOB, FIRST, END = 400, 150, 280


def jobs_of(num_healthy: int) -> dict[str, Job]:
    """Healthy jobs and slow ones, of every kind that has a clock of its own."""
    slow = (Slow((2,), FIRST, END, factor=1.6),)
    return {
        "healthy-ddp": Job("ddp", 4, num_healthy, COMPUTE_S, is_sporadic=True, timeout_s=500.0),
        "healthy-pipeline": Job("pipeline", 4, num_healthy // 2, COMPUTE_S, is_sporadic=True, timeout_s=500.0),
        "slow-ddp": Job("ddp", 4, NUM_SLOW_JOB, COMPUTE_S, slow, is_sporadic=True),
        "slow-grid": Job("grid", 4, NUM_SLOW_JOB, COMPUTE_S, slow, is_sporadic=True),
    }


def write(path: Path, job: Job, recorded: Recorded) -> int:
    """Times from the calls of all ranks, in the numbering of the loop, which is ahead by what was heard too early."""
    times_s = np.array(seen(recorded))
    missing = job.num_iterations - 1 - len(times_s)
    truth = [(max(0, slow.first - missing), slow.last - missing) for slow in job.slow]
    np.savez_compressed(path, iterations_s=times_s, truth=np.array(truth, np.int64).reshape(-1, 2))
    return len(times_s)


def seen(recorded: Recorded) -> list[float]:
    """Times of all iterations that a watcher sees, in portions as they would come."""
    watcher, times_s, known = Watcher(), list[float](), 0
    most = max(len(log.calls) for log in recorded.logs)
    for start in range(0, most, 100):
        watcher.see([type(log)(log.rank, log.calls[start : start + 100], log.groups) for log in recorded.logs])
        times_s += list(watcher.iterations_s)[len(watcher.iterations_s) - (watcher.num_iterations - known) :]
        known = watcher.num_iterations
    return times_s


def main() -> int:
    """Run the jobs and write what came of them."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--healthy", type=int, default=2000, metavar="N", help="iterations of a healthy job")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    jobs = jobs_of(options.healthy)
    for (name, job), recorded in zip(jobs.items(), run_jobs(list(jobs.values())), strict=True):
        print(f"{name}: {write(options.folder / f'{name}.npz', job, recorded)} iterations")
    return 0


if __name__ == "__main__":
    sys.exit(main())
