"""The program of the laboratory: `python -m takeup.training.engines.pytorch.lab.program FOLDER`.

Importing PyTorch takes seconds, so it is imported once, and the ranks of one trial after the other are forks. FOLDER
holds `trials`; what came of each is written to `outcomes`.
"""

from __future__ import annotations

import gc
import multiprocessing
import pickle
import sys
import time
import traceback
from multiprocessing.context import ForkProcess
from pathlib import Path

from takeup.core.lazy import load
from takeup.training.engines.pytorch.lab.ranks import Seen, run_rank
from takeup.training.engines.pytorch.lab.trials import Outcome, Trial

__all__ = ["main"]

GRACE_S = 5.0  # for the others, when one rank has failed


def main(folder: Path) -> None:
    """Run all trials, and write down what came of them."""
    trials: list[Trial] = pickle.loads((folder / "trials").read_bytes())  # our own bytes
    for trial in {trial.truth.num_stages: trial for trial in trials}.values():
        load("takeup.training.policies:find_policy")("adaptra").plan(trial.truth)  # compiled once for all ranks
    gc.freeze()  # else every rank once looks through all that was imported, in the middle of an iteration
    for number, trial in enumerate(trials):
        place = folder / str(number)
        place.mkdir()
        outcome = _run(trial, place)
        (place / "outcome").write_bytes(pickle.dumps(outcome))
        print(number, flush=True)


def _run(trial: Trial, place: Path) -> Outcome | str:
    """The outcome, or why there is none."""
    fork = multiprocessing.get_context("fork")
    ranks = [fork.Process(target=_be, args=(trial, rank, place)) for rank in range(trial.truth.num_stages)]
    for rank in ranks:
        rank.start()
    _join(ranks)
    written = [place / str(rank) for rank in range(len(ranks))]
    if not all(path.exists() for path in written):
        errors = [(place / f"{rank}.error") for rank in range(len(ranks))]
        return next((path.read_text("utf-8") for path in errors if path.exists()), "a rank ended without a word")
    return _joined(trial, [pickle.loads(path.read_bytes()) for path in written])


def _be(trial: Trial, rank: int, place: Path) -> None:
    """Be one rank."""
    try:
        (place / str(rank)).write_bytes(pickle.dumps(run_rank(trial, rank, place / "store")))
    except BaseException:
        (place / f"{rank}.error").write_text(traceback.format_exc(), "utf-8")
        raise


def _join(ranks: list[ForkProcess]) -> None:
    """Wait for all; once one has failed, not for long."""
    until_s = float("inf")
    while any(rank.is_alive() for rank in ranks) and time.monotonic() < until_s:
        time.sleep(0.02)
        if until_s == float("inf") and any(rank.exitcode for rank in ranks):
            until_s = time.monotonic() + GRACE_S
    for rank in ranks:
        rank.kill()
        rank.join()


def _joined(trial: Trial, seen: list[Seen]) -> Outcome:
    """The iterations of all ranks together, and what they agree on."""
    starts_s, ends_s = (
        zip(*times_s, strict=True) for times_s in ([each.starts_s for each in seen], [each.ends_s for each in seen])
    )
    return Outcome(
        trial.name,
        tuple(max(ends) - min(starts) for starts, ends in zip(starts_s, ends_s, strict=True)),
        max(each.gradient_error for each in seen),
        seen[0].order,
        seen[0].changed_after,
        seen[0].delegated,
        seen[0].measured,
        tuple(map(max, zip(*(each.pauses_s for each in seen), strict=True))),
        tuple(map(max, zip(*(each.swaps_s for each in seen), strict=True))),
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]))
