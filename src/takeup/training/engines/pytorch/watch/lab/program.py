"""The program of the laboratory: `python -m takeup.training.engines.pytorch.watch.lab.program FOLDER`.

Importing PyTorch takes seconds, so it is imported once, and the ranks of each job are forked.
"""

from __future__ import annotations

import gc
import json
import multiprocessing
import os
import sys
import time
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

from takeup.training.engines.pytorch.watch.hook import FOLDER, install
from takeup.training.engines.pytorch.watch.lab.jobs import WatchedJob
from takeup.training.engines.pytorch.watch.lab.loops import run_rank
from takeup.training.engines.pytorch.watch.lab.outside import ExternalSlowness

LOOK_EVERY_S = 0.02
NEEDED = {"fsdp": "torch.distributed.fsdp", "adaptive": "takeup.training.engines.pytorch.adaptive"}
GRACE_S = 5.0  # for the other ranks, after one has failed


def main(folder: Path) -> None:
    """Run all jobs; every rank writes its results to a file."""
    texts = (folder / "jobs").read_text("utf-8").splitlines()
    for module in ("torch._dynamo", *(NEEDED[kind] for kind in NEEDED if any(f'"{kind}"' in text for text in texts))):
        import_module(module)  # once for all ranks
    gc.freeze()  # else every rank would scan all imported objects in the middle of an iteration
    for number, text in enumerate(texts):
        place = folder / str(number)
        place.mkdir()
        _run(WatchedJob.from_json(text), place)
        (place / "over").touch()


def _run(job: WatchedJob, place: Path) -> None:
    fork, outside = multiprocessing.get_context("fork"), ExternalSlowness(job)
    iteration = fork.Value("q", 0, lock=False)
    ranks = [
        fork.Process(target=_rank_process, args=(job, rank, place, outside, iteration)) for rank in range(job.num_ranks)
    ]
    for rank in ranks:
        rank.start()
    until_s = time.monotonic() + job.timeout_s
    while any(rank.is_alive() for rank in ranks) and time.monotonic() < until_s:
        time.sleep(LOOK_EVERY_S)
        outside.at(iteration.value, [rank.pid or 0 for rank in ranks])
        if any(rank.exitcode for rank in ranks):
            until_s = min(until_s, time.monotonic() + GRACE_S)
    outside.close()
    for rank in ranks:
        rank.kill()
        rank.join()


def _rank_process(job: WatchedJob, rank: int, place: Path, outside: ExternalSlowness, iteration: Any) -> None:
    """Run one rank in this process; rank 0 publishes the current iteration."""
    outside.join(rank)
    if job.is_watched:
        os.environ[FOLDER] = str(place)
        install(place)
    seen = run_rank(job, rank, place / "store", partial(setattr, iteration, "value") if rank == 0 else lambda _: None)
    (place / f"{rank}.json").write_text(json.dumps(seen), "utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
