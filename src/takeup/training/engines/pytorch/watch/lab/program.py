"""The program of the laboratory: `python -m takeup.training.engines.pytorch.watch.lab.program FOLDER`.

Importing PyTorch takes seconds, so it is imported once, and the ranks of one job after the other are forks.
"""

from __future__ import annotations

import gc
import json
import multiprocessing
import os
import sys
import time
from importlib import import_module
from pathlib import Path

from takeup.training.engines.pytorch.watch.hook import FOLDER, install
from takeup.training.engines.pytorch.watch.lab.jobs import Job
from takeup.training.engines.pytorch.watch.lab.loops import run_rank

__all__ = ["main"]

GRACE_S = 5.0  # for the others, when one rank has failed


def main(folder: Path) -> None:
    """Run all jobs; every rank writes down what it saw."""
    texts = (folder / "jobs").read_text("utf-8").splitlines()
    for module in ("torch._dynamo", *("torch.distributed.fsdp" for text in texts if '"fsdp"' in text)):
        import_module(module)  # once for all ranks
    gc.freeze()  # else every rank once looks through all that was imported, in the middle of an iteration
    for number, text in enumerate(texts):
        place = folder / str(number)
        place.mkdir()
        _run(Job.from_json(text), place)
        (place / "over").touch()


def _run(job: Job, place: Path) -> None:
    fork = multiprocessing.get_context("fork")
    ranks = [fork.Process(target=_be, args=(job, rank, place)) for rank in range(job.num_ranks)]
    for rank in ranks:
        rank.start()
    until_s = time.monotonic() + job.timeout_s
    while any(rank.is_alive() for rank in ranks) and time.monotonic() < until_s:
        time.sleep(0.02)
        if any(rank.exitcode for rank in ranks):
            until_s = min(until_s, time.monotonic() + GRACE_S)
    for rank in ranks:
        rank.kill()
        rank.join()


def _be(job: Job, rank: int, place: Path) -> None:
    """Be one rank."""
    if job.is_watched:
        os.environ[FOLDER] = str(place)
        install(place)
    seen = run_rank(job, rank, place / "store")
    (place / f"{rank}.json").write_text(json.dumps(seen), "utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
