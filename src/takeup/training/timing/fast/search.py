"""Numba kernels: local search over the limits of an order, one stage at a time; the objective is its iteration time.

The search starts with as many micro-batches in flight per stage as its warm-up, and a few more. Then single moves:
one stage warms up more or less, alone or together with all stages before it, so that only the slack towards the next
stage changes; or it may have more or fewer micro-batches in flight. Improvements are kept and repeated. The search
ends when no move helps, when the bound is nearly reached, or when its budget is exhausted.
"""

from __future__ import annotations

import numpy as np

from takeup.core.arrays import Ints
from takeup.core.compiled import bare, kernel
from takeup.training.timing.fast.generate import OrderLimits, generate, make_scratch
from takeup.training.timing.fast.traffic import NEVER, PipelineArrays

NUM_MOVES = 7
MOST_EXTRA = 9
GOOD_ENOUGH = 1000  # stop at a gap of one part in this number
FEW_OPERATIONS = 30_000  # budget in operations, a millisecond or two
WHOLE_ORDERS = 36  # minimum budget in complete orders, for any pipeline


@bare
def _move(course: PipelineArrays, limits: OrderLimits, stage: int, kind: int, trial: OrderLimits) -> bool:
    """Write moved limits into `trial`; False if they would be invalid or unchanged."""
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
def search(course: PipelineArrays, limits: OrderLimits, bound: int, most: int, codes: Ints) -> tuple[int, int]:
    """Improve `limits` in place; writes the best order to `codes`; returns its time and the number of orders."""
    room = make_scratch(course)
    best = generate(course, limits, NEVER, room)
    bound += bound // GOOD_ENOUGH
    codes[:] = room.codes
    trial = OrderLimits(limits.warmup.copy(), limits.flights.copy(), limits.caps)
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
def smallest_caps(course: PipelineArrays, limits: OrderLimits, allowed: int, codes: Ints) -> tuple[int, int]:
    """Lower `limits.caps` in place while the time stays `allowed`; returns the time and number of orders.

    All ranks get the same cap, or their previous one if that is lower.
    """
    room = make_scratch(course)
    trial = limits.caps.copy()
    low, high = int(limits.warmup[0]), int(np.max(limits.caps))
    evaluations, best = 0, allowed
    while low < high:
        middle = (low + high) // 2
        for rank in range(trial.size):
            trial[rank] = min(limits.caps[rank], middle)
        found = generate(course, OrderLimits(limits.warmup, limits.flights, trial), allowed + 1, room)
        evaluations += 1
        if found <= allowed:
            high, best = middle, found
            codes[:] = room.codes
        else:
            low = middle + 1
    for rank in range(trial.size):
        limits.caps[rank] = min(limits.caps[rank], high)
    return best, evaluations
