"""Numba kernel: search warm-ups, one stage at a time, with the generated order as the judge.

A move makes one stage warm up more or less, alone or together with all stages before it, so that the slack towards the
next stage changes and no other. What helps is kept and tried again; the search ends when no move helps, when the bound
is reached, or when it has tried enough.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from takeup.core.compiled import bare, kernel
from takeup.training.timing.fast.generate import Limits, generate, make_room
from takeup.training.timing.fast.traffic import NEVER, Course

__all__ = ["search", "smallest_caps"]

Ints = npt.NDArray[np.int64]


@bare
def _move(course: Course, limits: Limits, stage: int, by: int, alone: bool, trial: Ints) -> bool:
    """Write the moved warm-ups into `trial`; False if they would not be valid."""
    for other in range(trial.size):
        trial[other] = limits.warmup[other]
    for other in range(stage if alone else 0, stage + 1):
        trial[other] = min(trial[other] + by, limits.caps[course.rank_of[other]], limits.flights[other])
    changed = False
    for other in range(trial.size):
        if trial[other] < 1 or (other > 0 and trial[other] > trial[other - 1]):
            return False
        changed |= trial[other] != limits.warmup[other]
    return changed


@kernel
def search(course: Course, limits: Limits, bound: int, most: int, codes: Ints) -> tuple[int, int]:
    """Improve `limits.warmup` in place; the best order into `codes`, its time and how many orders were made."""
    room = make_room(course)
    best = generate(course, limits, NEVER, room)
    codes[:] = room.codes
    trial = limits.warmup.copy()
    evaluations, since_better, turn = 1, 0, 0
    num_turns = 4 * limits.warmup.size
    while best > bound and evaluations < most and since_better < num_turns:
        stage = limits.warmup.size - 1 - (turn // 4) % limits.warmup.size
        by, alone = (1 if turn % 2 == 0 else -1), turn % 4 >= 2
        found = NEVER
        if _move(course, limits, stage, by, alone, trial):
            found = generate(course, Limits(trial, limits.flights, limits.caps), best, room)
            evaluations += 1
        if found < best:
            best, since_better = found, 0
            limits.warmup[:] = trial
            codes[:] = room.codes
        else:
            since_better += 1
            turn += 1
    return best, evaluations


@kernel
def smallest_caps(course: Course, limits: Limits, allowed: int, codes: Ints) -> tuple[int, int]:
    """Lower `limits.caps` in place as far as the time stays `allowed`; the time and the number of orders made.

    All ranks get the same number, or what they had if that is less.
    """
    room = make_room(course)
    trial = limits.caps.copy()
    low, high = int(limits.warmup[0]), int(np.max(limits.caps))
    evaluations, best = 0, -1
    while low < high:
        middle = (low + high) // 2
        for rank in range(trial.size):
            trial[rank] = min(limits.caps[rank], middle)
        found = generate(course, Limits(limits.warmup, limits.flights, trial), allowed + 1, room)
        evaluations += 1
        if found <= allowed:
            high, best = middle, found
            codes[:] = room.codes
        else:
            low = middle + 1
    for rank in range(trial.size):
        limits.caps[rank] = min(limits.caps[rank], high)
    return best, evaluations
