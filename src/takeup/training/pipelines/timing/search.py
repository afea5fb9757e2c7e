"""Numba kernels: local search over the limits of an order, one stage at a time; the objective is its iteration time."""

from typing import NamedTuple

import numpy as np

from takeup.core.arrays import Ints
from takeup.core.compiled import bare, inlined, inner, kernel
from takeup.training.pipelines.timing.replay import (
    NEVER,
    NO_WIRE,
    PipelineArrays,
    Wires,
    free_wires,
    lane_free_at,
    passes_on,
    send,
)

# The search starts with as many micro-batches in flight per stage as its warm-up, and a few more. Then single moves:
# one stage warms up more or less, alone or together with all stages before it, so that only the slack towards the next
# stage changes; or it may have more or fewer micro-batches in flight. Improvements are kept and repeated. The search
# ends when no move helps, when the bound is nearly reached, or when its budget is exhausted.

# Numba kernels: generate an order by greedy list scheduling: every free rank chooses among its ready operations -------
#
# How it works. The rank that can act soonest acts: a backward if one is ready and the stage has warmed up, else a
# forward if memory allows another micro-batch, else a weight gradient, else it waits. Of its stages, the last in the
# pipeline has priority. A rank that admits a micro-batch reserves memory for it on all of its stages, so that forwards
# of an early stage cannot starve those of a late one.
#
# An order that cannot be faster than `limit` is abandoned as soon as this is known.


class OrderLimits(NamedTuple):
    """Constraints on an order.

    Stage i computes `warmup[i]` forwards before its first backward, and never has more than `flights[i]` micro-batches
    with a pending backward; rank r has at most `caps[r]` micro-batches with a pending weight gradient.
    """

    warmup: Ints
    flights: Ints
    caps: Ints


class OrderScratch(NamedTuple):
    """Scratch arrays of a run: arrivals by direction, stage and micro-batch, counts by kind and stage, state of ranks.

    `left` is the remaining compute time of a rank, `due` the part of it before it sends its last gradient, and `home`
    the minimum time from that gradient to the end of the iteration.
    """

    arrival: Ints
    done: Ints
    free: Ints
    wake: Ints
    left: Ints
    due: Ints
    home: Ints
    reserved: Ints
    codes: Ints
    num_codes: Ints
    wires: Wires


@inner
def make_scratch(course: PipelineArrays) -> OrderScratch:
    """Allocate scratch arrays that consecutive runs reuse."""
    num_ranks, (_, num_stages, count) = course.first.size - 1, course.lasts.shape
    most = 0
    for rank in range(num_ranks):
        most = max(most, course.first[rank + 1] - course.first[rank])
    return OrderScratch(
        np.empty((2, num_stages, count), np.int64),
        np.empty((3, num_stages), np.int64),
        np.empty(num_ranks, np.int64),
        np.empty(num_ranks, np.int64),
        np.empty(num_ranks, np.int64),
        np.empty(num_ranks, np.int64),
        _ways_home(course),
        np.empty(num_ranks, np.int64),
        np.empty((num_ranks, 3 * count * most), np.int64),
        np.empty(num_ranks, np.int64),
        free_wires(course),
    )


@inner
def _ways_home(course: PipelineArrays) -> Ints:
    """Time from the last gradient of every rank to the end of the iteration; zeros if a rank has several stages."""
    num_ranks, (_, num_stages, count) = course.first.size - 1, course.lasts.shape
    home = np.zeros(num_ranks, np.int64)
    if num_ranks == num_stages:
        home[0] = course.lasts[2, 0, count - 1] + course.tail[0]
        for stage in range(1, num_stages):
            hop = course.service[stage - 1, count - 1] + course.latency[stage - 1]
            home[stage] = hop + course.lasts[1, stage - 1, count - 1] + home[stage - 1]
    return home


@bare
def _reset(course: PipelineArrays, room: OrderScratch) -> None:
    room.arrival[:] = NEVER
    room.arrival[0, 0, :] = 0
    room.done[:] = 0
    room.free[:] = 0
    for rank in range(room.left.size):
        room.left[rank] = course.work[rank]
        room.due[rank] = 0
    for stage in range(course.rank_of.size):
        for microbatch in range(course.lasts.shape[2]):
            room.due[course.rank_of[stage]] += course.lasts[0, stage, microbatch] + course.lasts[1, stage, microbatch]
    room.reserved[:] = 0
    room.num_codes[:] = 0
    room.wires.free[:] = 0
    room.wires.num_under_way[:] = 0


@inlined
def _admits(course: PipelineArrays, room: OrderScratch, limits: OrderLimits, rank: int, stage: int) -> bool:
    """Whether the next forward may start; memory of later stages of a rank is already reserved."""
    if room.done[0, stage] - room.done[1, stage] >= limits.flights[stage]:
        return False
    begin = course.first[rank]
    if stage != course.stage_list[begin]:
        return True
    num_stages = course.first[rank + 1] - begin
    return bool(room.reserved[rank] + num_stages <= limits.caps[rank] * num_stages)


@inlined
def _wake_at(course: PipelineArrays, room: OrderScratch, limits: OrderLimits, rank: int) -> int:
    """When a rank can act next; NEVER while it waits for a message not yet sent."""
    count = course.lasts.shape[2]
    soonest: int = NEVER
    for index in range(course.first[rank], course.first[rank + 1]):
        stage = course.stage_list[index]
        forwards, backwards = room.done[0, stage], room.done[1, stage]
        if room.done[2, stage] < backwards:
            return int(room.free[rank])
        if backwards < count and forwards >= limits.warmup[stage]:
            soonest = min(soonest, room.arrival[1, stage, backwards])
        if forwards < count and _admits(course, room, limits, rank, stage):
            soonest = min(soonest, room.arrival[0, stage, forwards])
    return NEVER if soonest == NEVER else int(max(room.free[rank], soonest))


@inlined
def _choose(course: PipelineArrays, room: OrderScratch, limits: OrderLimits, rank: int, now: int) -> tuple[int, int]:
    """The kind and the stage of the next operation of a rank."""
    count = course.lasts.shape[2]
    forward, weight = -1, -1
    for index in range(course.first[rank + 1] - 1, course.first[rank] - 1, -1):
        stage = course.stage_list[index]
        forwards, backwards = room.done[0, stage], room.done[1, stage]
        if backwards < count and forwards >= limits.warmup[stage] and room.arrival[1, stage, backwards] <= now:
            return 1, stage
        if forward < 0 and forwards < count and room.arrival[0, stage, forwards] <= now:
            forward = stage if _admits(course, room, limits, rank, stage) else -1
        if weight < 0 and room.done[2, stage] < backwards:
            weight = stage
    return (0, forward) if forward >= 0 else (2, weight)


@bare
def generate(course: PipelineArrays, limits: OrderLimits, limit: int, room: OrderScratch) -> int:
    """Generate an order into `room.codes`; returns its iteration time, or `limit` if it is not less than that."""
    _reset(course, room)
    num_ranks, (_, num_stages, count) = course.first.size - 1, course.lasts.shape
    for rank in range(num_ranks):
        room.wake[rank] = _wake_at(course, room, limits, rank)
    whole = 0
    for _ in range(3 * num_stages * count):
        rank = 0
        for other in range(1, num_ranks):
            if room.wake[other] < room.wake[rank]:
                rank = other
        now = room.wake[rank]
        if now + room.left[rank] >= limit or (room.due[rank] > 0 and now + room.due[rank] + room.home[rank] >= limit):
            return limit
        kind, stage = _choose(course, room, limits, rank, now)
        microbatch = room.done[kind, stage]
        room.done[kind, stage] += 1
        lasts = course.lasts[kind, stage, microbatch]
        end = now + lasts
        room.left[rank] -= lasts
        if kind != 2:
            room.due[rank] -= lasts
        room.codes[rank, room.num_codes[rank]] = (stage * count + microbatch) * 4 + kind
        room.num_codes[rank] += 1
        whole = max(whole, end + course.tail[stage])
        if kind == 0 and stage == course.stage_list[course.first[rank]]:
            room.reserved[rank] += course.first[rank + 1] - course.first[rank]
        elif kind == 2:
            room.reserved[rank] -= 1
        target, wire = passes_on(course, stage, kind)
        arrives = 0
        if target >= 0:
            arrives = end
            if wire != NO_WIRE:
                arrives = send(course, room.wires, wire, min(stage, target), microbatch, end)
            room.arrival[kind, target, microbatch] = arrives
        elif kind == 0:
            room.arrival[1, stage, microbatch] = end
        room.free[rank] = lane_free_at(course, room.wires, rank, end, arrives)
        room.wake[rank] = _wake_at(course, room, limits, rank)
        if target >= 0 and wire != NO_WIRE:
            receiver = course.rank_of[target]
            room.wake[receiver] = _wake_at(course, room, limits, receiver)
    return int(min(whole, limit))


@kernel
def make_order(course: PipelineArrays, limits: OrderLimits, codes: Ints) -> int:
    """Generate one order into `codes[rank]`; returns its iteration time, or NEVER on deadlock."""
    room = make_scratch(course)
    whole = generate(course, limits, NEVER, room)
    codes[:] = room.codes
    return whole


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
