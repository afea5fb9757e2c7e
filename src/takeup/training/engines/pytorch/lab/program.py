"""The program of the laboratory: `python -m takeup.training.engines.pytorch.lab.program FOLDER`.

Importing PyTorch takes seconds, so it is imported once, and the ranks of each trial are forked. FOLDER contains
`trials`; the outcome of trial N is written to `N/outcome`.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import pickle
import sys
import time
import traceback
from multiprocessing.context import ForkProcess
from pathlib import Path

from takeup.training.engines.pytorch.lab.network import PipelineNetwork
from takeup.training.engines.pytorch.lab.ranks import IterationTimes, RankObservations, run_rank
from takeup.training.engines.pytorch.lab.stages import BULK_BYTES
from takeup.training.engines.pytorch.lab.trials import LabTrial, TrialOutcome
from takeup.training.policies import find_policy

GRACE_S = 5.0  # for the other ranks, after one has failed
PARENT = os.getppid()


def main(folder: Path) -> None:
    """Run all trials and write their outcomes."""
    trials: list[LabTrial] = pickle.loads((folder / "trials").read_bytes())  # our own bytes
    for trial in {trial.truth.num_stages: trial for trial in trials}.values():
        find_policy("adaptra").plan(trial.truth)  # compiled once for all ranks
    gc.freeze()  # else every rank would scan all imported objects in the middle of an iteration
    for number, trial in enumerate(trials):
        place = folder / str(number)
        place.mkdir()
        outcome = _run(trial, place)
        (place / "outcome").write_bytes(pickle.dumps(outcome))
        print(number, flush=True)


def _run(trial: LabTrial, place: Path) -> TrialOutcome | str:
    """Run one trial; return its outcome or an error text."""
    fork = multiprocessing.get_context("fork")
    cables = PipelineNetwork(trial.truth, BULK_BYTES) if trial.cables else None
    ranks = [
        fork.Process(target=_rank_process, args=(trial, rank, place, cables)) for rank in range(trial.truth.num_stages)
    ]
    for rank in ranks:
        rank.start()
    _join(ranks)
    if cables is not None:
        cables.close()
    written = [place / str(rank) for rank in range(len(ranks))]
    if not all(path.exists() for path in written):
        errors = [(place / f"{rank}.error") for rank in range(len(ranks))]
        return next((path.read_text("utf-8") for path in errors if path.exists()), "a rank ended without a word")
    return _merge_observations(trial, [pickle.loads(path.read_bytes()) for path in written])


def _rank_process(trial: LabTrial, rank: int, place: Path, cables: PipelineNetwork | None) -> None:
    """Run one rank in this process."""
    try:
        if cables is not None:
            cables.join(rank)
        (place / str(rank)).write_bytes(pickle.dumps(run_rank(trial, rank, place / "store")))
    except BaseException:
        (place / f"{rank}.error").write_text(traceback.format_exc(), "utf-8")
        raise


def _join(ranks: list[ForkProcess]) -> None:
    """Wait for all ranks; at most `GRACE_S` after one has failed, and not at all once the parent process is gone."""
    until_s = float("inf")
    while any(rank.is_alive() for rank in ranks) and time.monotonic() < until_s and os.getppid() == PARENT:
        time.sleep(0.02)
        if until_s == float("inf") and any(rank.exitcode for rank in ranks):
            until_s = time.monotonic() + GRACE_S
    for rank in ranks:
        rank.kill()
        rank.join()
    if os.getppid() != PARENT:
        raise SystemExit("whoever started the laboratory is gone")


def _merge_observations(trial: LabTrial, seen: list[RankObservations]) -> TrialOutcome:
    """Merge the observations of all ranks into an outcome."""
    iterations_s, cpus_s = _job_times([each.times for each in seen])
    stock_s, stock_cpus_s = _job_times([each.stock_times for each in seen])
    return TrialOutcome(
        trial.name,
        iterations_s,
        max(each.gradient_error for each in seen),
        seen[0].order,
        seen[0].changed_after,
        seen[0].delegated,
        seen[0].measured,
        tuple(map(max, zip(*(each.pauses_s for each in seen), strict=True))),
        tuple(map(max, zip(*(each.swaps_s for each in seen), strict=True))),
        cpus_s,
        stock_s,
        stock_cpus_s,
    )


def _job_times(ranks: list[tuple[IterationTimes, ...]]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Duration of every iteration, from the first start to the last end over all ranks, and its mean CPU time."""
    iterations = list(zip(*ranks, strict=True))
    lasted_s = tuple(max(each.end_s for each in ranks) - min(each.start_s for each in ranks) for ranks in iterations)
    return lasted_s, tuple(sum(each.cpu_s for each in ranks) / len(ranks) for ranks in iterations)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
