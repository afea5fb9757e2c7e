"""Numba kernels: search limits of an order, one stage at a time, with the generated order as the judge.

First all stages may have as many micro-batches under way as they warm up with, and a few more. Then come single moves:
one stage warms up more or less, alone or together with all stages before it, so that the slack towards the next stage
changes and no other; or it may have more or fewer micro-batches under way. What helps is kept and tried again. The
search ends when no move helps, when the bound is as good as reached, or when it has tried enough.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from takeup.core.compiled import bare, kernel
from takeup.training.timing.fast.generate import Limits, generate, make_room
from takeup.training.timing.fast.traffic import NEVER, Course

__all__ = ["search", "smallest_caps"]

Ints = npt.NDArray[np.int64]
NUM_MOVES = 7
MOST_EXTRA = 9
GOOD_ENOUGH = 1000  # a gap of one part in so many is not worth another order
FEW_OPERATIONS = 30_000  # a search of so many takes a millisecond or two
WHOLE_ORDERS = 36  # and this many whole orders are made of any pipeline, if it takes them


@bare
def _move(course: Course, limits: Limits, stage: int, kind: int, trial: Limits) -> bool:
    """Write moved limits into `trial`; False if they would not be valid, or are what they were."""
    num_stages, count = limits.warmup.size, course.lasts.shape[2]
    for other in range(num_stages):
        trial.warmup[other], trial.flights[other] = limits.warmup[other], limits.flights[other]
    if kind < 4:
        for other in range(stage if kind >= 2 else 0, stage + 1):
            most = min(limits.caps[course.rank_of[other]], limits.flights[other])
            trial.warmup[other] = min(trial.warmup[other] + 1 - 2 * (kind % 2), most)
    elif kind == 4:
        trial.flights[stage] = (limits.flights[stage] + limits.warmup[stage]) // 2
    else:
        trial.flights[stage] = min(count, limits.flights[stage] + (1 if kind == 5 else -1))
    changed = bool(trial.flights[stage] != limits.flights[stage])
    for other in range(num_stages):
        least = trial.warmup[other + 1] if other + 1 < num_stages else 1
        if trial.warmup[other] < least or trial.flights[other] < trial.warmup[other]:
            return False
        changed |= bool(trial.warmup[other] != limits.warmup[other])
    return changed


@kernel
def search(course: Course, limits: Limits, bound: int, most: int, codes: Ints) -> tuple[int, int]:
    """Improve `limits` in place; the best order into `codes`, its time, and how many orders were made."""
    room = make_room(course)
    best = generate(course, limits, NEVER, room)
    bound += bound // GOOD_ENOUGH
    codes[:] = room.codes
    trial = Limits(limits.warmup.copy(), limits.flights.copy(), limits.caps)
    evaluations, since_better, turn = 1, 0, 0
    num_stages = limits.warmup.size
    left = max(FEW_OPERATIONS, WHOLE_ORDERS * 3 * num_stages * course.lasts.shape[2])
    for extra in range(MOST_EXTRA):
        if best <= bound or evaluations >= most or left <= 0:
            break
        for stage in range(num_stages):
            trial.flights[stage] = min(course.lasts.shape[2], limits.warmup[stage] + extra)
        found = generate(course, trial, best, room)
        evaluations += 1
        left -= room.num_codes.sum()
        if found < best:
            best = found
            limits.flights[:] = trial.flights
            codes[:] = room.codes
    while best > bound and evaluations < most and left > 0 and since_better < NUM_MOVES * num_stages:
        found = NEVER
        if _move(course, limits, num_stages - 1 - turn // NUM_MOVES % num_stages, turn % NUM_MOVES, trial):
            found = generate(course, trial, best, room)
            evaluations += 1
            left -= room.num_codes.sum()
        if found < best:
            best, since_better = found, 0
            limits.warmup[:] = trial.warmup
            limits.flights[:] = trial.flights
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
    evaluations, best = 0, allowed
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
