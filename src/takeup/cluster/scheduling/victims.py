"""Numba kernels: which jobs to evict from one node so that a worker fits, by the rule of the scheduler.

How it works. A choice is stored in the jobs: `mark` is CHOSEN for victims of the node under review and AGREED for
victims already in the plan. What an agreed victim frees on other nodes is in their `gain`; what the plan has used is in
`taken`. So a victim is paid for once and frees everything it holds.
"""

import numpy as np

from takeup.cluster.scheduling.counters import fragmentation, saved_at
from takeup.cluster.scheduling.layout import MOST_BITS, MOVED_BELOW, Fleet
from takeup.cluster.scheduling.rules import (
    CHEAPEST,
    FEWEST,
    FRAGMENT_NODE,
    LARGEST_FIRST,
    SMALLEST_FIRST,
    TIGHTEST,
    TWO_POINTERS,
    SchedulerRules,
)
from takeup.core.compiled import inlined, inner

AGREED, CHOSEN = 1, 2
PROMISE_PRICE = 1e12  # a promise is broken only where nothing else helps; once it was kept, it protects no longer
SECONDS_OF_A_MONTH = 744 * 3600.0


@inlined
def idle_in_plan(fleet: Fleet, node: int) -> int:
    """GPUs of a node that the plan may still use without another victim; below zero if some are missing."""
    it = fleet.nodes[node]
    return int(it.free + it.gain - it.taken - it.reserved) if it.healthy else -1_000_000


@inlined
def room_in_plan(fleet: Fleet, node: int) -> int:
    """GPUs of a node that the plan could use if every spot job were evicted from it."""
    it = fleet.nodes[node]
    return int(it.size - it.high_gpus - it.taken - it.reserved) if it.healthy else -1_000_000


@inlined
def is_evictable(fleet: Fleet, job: int, now_s: float, rules: SchedulerRules) -> bool:
    """Whether a job may be evicted now, and is neither in the plan nor under notice."""
    it, below = fleet.jobs[job], fleet.totals[MOVED_BELOW]
    if below > 0 and (it.gpus >= below or it.start_s >= now_s or it.promised == 1):
        return False
    return bool(it.kind == 1 and it.mark == 0 and it.leaving_for < 0 and now_s - it.start_s >= rules.min_runtime_s)


@inlined
def restart_gpu_s(fleet: Fleet, job: int, rules: SchedulerRules) -> float:
    """GPU-seconds that starting again takes."""
    num_gpus = fleet.jobs[job].workers * fleet.jobs[job].milli / 1000.0
    return float(num_gpus * (rules.restart_small_s if num_gpus <= 8 else rules.restart_large_s))


@inlined
def lost_gpu_s(fleet: Fleet, job: int, now_s: float) -> float:
    """GPU-seconds of work that are gone if a job stops now."""
    it = fleet.jobs[job]
    return float(it.workers * it.milli / 1000.0 * (now_s - saved_at(fleet, job, now_s)))


@inlined
def price(fleet: Fleet, job: int, now_s: float, rules: SchedulerRules) -> float:
    """What the eviction of a job costs, in GPU-seconds; prices order victims, they never forbid one."""
    cost = lost_gpu_s(fleet, job, now_s) + restart_gpu_s(fleet, job, rules)
    return float(cost + (PROMISE_PRICE if fleet.jobs[job].promised == 1 else 0.0))


@inner
def freed(fleet: Fleet, node: int, mark: int) -> int:
    """GPUs of a node that become whole and idle if jobs with this mark are evicted (agreed ones count as gone)."""
    count, has_shared = 0, False
    worker = fleet.nodes[node].first
    while worker >= 0:
        job = fleet.jobs[fleet.workers[worker].job]
        if job.gpus == 0:
            has_shared = True
        elif job.mark == mark:
            count += job.gpus
        worker = fleet.workers[worker].next
    if has_shared:
        for slot in range(fleet.nodes[node].size):
            count += 1 if _slot_is_freed(fleet, node, slot, mark) else 0
    return count


@inner
def _slot_is_freed(fleet: Fleet, node: int, slot: int, mark: int) -> bool:
    if fleet.share_room_milli[node, slot] == 1000 or fleet.share_high[node, slot] > 0:
        return False
    has_one = False
    worker = fleet.nodes[node].first
    while worker >= 0:
        job = fleet.jobs[fleet.workers[worker].job]
        if job.gpus == 0 and fleet.workers[worker].slot == slot:
            if job.mark == mark:
                has_one = True
            elif job.mark != AGREED:
                return False
        worker = fleet.workers[worker].next
    return has_one


@inner
def _gather(fleet: Fleet, node: int, now_s: float, rules: SchedulerRules) -> int:
    """List the evictable jobs of a node in `scratch[0]`, by number; returns how many."""
    found, count = fleet.scratch[0], 0
    worker = fleet.nodes[node].first
    while worker >= 0 and count < len(found):
        job = fleet.workers[worker].job
        if is_evictable(fleet, job, now_s, rules):
            place = count
            while place > 0 and found[place - 1] > job:
                place -= 1
            if place == 0 or found[place - 1] != job:
                for later in range(count, place, -1):
                    found[later] = found[later - 1]
                found[place] = job
                count += 1
        worker = fleet.workers[worker].next
    return count


@inner
def unmark(fleet: Fleet, count: int) -> None:
    """Reset all CHOSEN marks of the candidate list."""
    for place in range(count):
        if fleet.jobs[fleet.scratch[0, place]].mark == CHOSEN:
            fleet.jobs[fleet.scratch[0, place]].mark = 0


@inner
def choose(fleet: Fleet, node: int, asked: int, now_s: float, rules: SchedulerRules) -> tuple[int, float, float]:
    """Mark victims so that `asked` GPUs of a node are idle; returns the number of candidates and two node prices.

    The first price is infinite if it cannot be done.
    """
    idle, room = idle_in_plan(fleet, node), room_in_plan(fleet, node)
    if room < asked:
        return 0, np.inf, 0.0
    count = _gather(fleet, node, now_s, rules)
    if rules.victims == CHEAPEST and count <= MOST_BITS:
        return count, _choose_subset(fleet, node, count, asked, now_s, rules), float(room)
    if idle < asked and not _choose_in_order(fleet, node, count, asked - idle, now_s, rules):
        unmark(fleet, count)
        return count, np.inf, 0.0
    first, second = _node_prices(fleet, count, asked, room, now_s, rules)
    return count, first, second


@inner
def _node_prices(
    fleet: Fleet, count: int, asked: int, room: int, now_s: float, rules: SchedulerRules
) -> tuple[float, float]:
    num_victims, earliest_s, lost, costs, shares = 0, np.inf, 0.0, 0.0, 0.0
    for place in range(count):
        job = fleet.scratch[0, place]
        it = fleet.jobs[job]
        if it.mark == CHOSEN:
            num_victims += 1
            earliest_s = min(earliest_s, it.start_s)
            lost += lost_gpu_s(fleet, job, now_s)
            costs += price(fleet, job, now_s, rules)
            shares += max(1, it.gpus) * 1000.0 / (it.workers * it.milli)
    if rules.victims == CHEAPEST:
        return costs, float(room)
    if rules.victims == FEWEST:
        return float(num_victims), -earliest_s if num_victims else -np.inf
    if rules.victims == FRAGMENT_NODE:
        return fragmentation(room - asked, False) - fragmentation(room, False), 0.0
    if rules.victims == TWO_POINTERS:
        window = fleet.nodes.size * fleet.nodes[0].size * SECONDS_OF_A_MONTH
        return float(room), 1e-4 * num_victims + 5.0 * lost / window
    return float(room), shares if rules.victims != TIGHTEST else 0.0


@inner
def _order_key(fleet: Fleet, job: int, now_s: float, rules: SchedulerRules) -> float:
    it = fleet.jobs[job]
    if rules.victims == LARGEST_FIRST:
        return -float(it.workers * it.milli)
    if rules.victims == SMALLEST_FIRST:
        return float(it.workers * it.milli)
    if rules.victims == TWO_POINTERS:
        return -lost_gpu_s(fleet, job, now_s)
    if rules.victims == CHEAPEST:
        return price(fleet, job, now_s, rules)
    return float(it.start_s)


@inner
def _choose_in_order(fleet: Fleet, node: int, count: int, missing: int, now_s: float, rules: SchedulerRules) -> bool:
    """Mark victims one after another; False if all together free too little."""
    _sort(fleet, count, now_s, rules)
    found = fleet.scratch[0]
    if rules.victims in (FEWEST, TWO_POINTERS):
        for place in range(count):
            fleet.jobs[found[place]].mark = CHOSEN
        if freed(fleet, node, CHOSEN) < missing:
            return False
        if rules.victims == FEWEST:
            for place in range(count):
                _spare(fleet, node, found[place], missing)
        else:
            _spare_from_both_ends(fleet, node, count, missing)
        return True
    for place in range(count):
        if freed(fleet, node, CHOSEN) >= missing:
            break
        fleet.jobs[found[place]].mark = CHOSEN
    if freed(fleet, node, CHOSEN) < missing:
        return False
    if rules.victims == CHEAPEST:
        for place in range(count - 1, -1, -1):
            if fleet.jobs[found[place]].mark == CHOSEN:
                _spare(fleet, node, found[place], missing)
    return True


@inner
def _spare(fleet: Fleet, node: int, job: int, missing: int) -> bool:
    """Drop a chosen job from the victims if the others free enough."""
    fleet.jobs[job].mark = 0
    if freed(fleet, node, CHOSEN) >= missing:
        return True
    fleet.jobs[job].mark = CHOSEN
    return False


@inner
def _spare_from_both_ends(fleet: Fleet, node: int, count: int, missing: int) -> None:
    left, right = 0, count - 1
    while left <= right:
        while left <= right and _spare(fleet, node, fleet.scratch[0, left], missing):
            left += 1
        left += 1
        while left <= right and _spare(fleet, node, fleet.scratch[0, right], missing):
            right -= 1
        right -= 1


@inner
def _sort(fleet: Fleet, count: int, now_s: float, rules: SchedulerRules) -> None:
    """Sort the list by the key of the rule; equal keys stay in the order of job numbers."""
    found, keys = fleet.scratch[0], fleet.prices[1]
    for place in range(min(count, len(keys))):
        job = found[place]
        key = _order_key(fleet, job, now_s, rules)
        before = place
        while before > 0 and keys[before - 1] > key:
            keys[before], found[before] = keys[before - 1], found[before - 1]
            before -= 1
        keys[before], found[before] = key, job


@inner
def _choose_subset(fleet: Fleet, node: int, count: int, asked: int, now_s: float, rules: SchedulerRules) -> float:
    """Mark the cheapest set of victims by exhaustive search; returns its price."""
    idle, found = idle_in_plan(fleet, node), fleet.scratch[0]
    costs, gpus = fleet.prices[0], fleet.prices[1]
    has_shared = _whole_gpus(fleet, node, count)
    costs[0], gpus[0] = 0.0, 0.0
    best, lowest = -1, np.inf
    if idle >= asked:
        best, lowest = 0, 0.0
    for bit in range(count):
        own, whole = price(fleet, found[bit], now_s, rules), fleet.scratch[1, bit]
        for rest in range(1 << bit):
            subset = rest + (1 << bit)
            costs[subset], gpus[subset] = costs[rest] + own, gpus[rest] + whole
            if costs[subset] >= lowest:
                continue
            left = idle + int(gpus[subset]) - asked
            if has_shared:
                left += _shared_freed(fleet, node, count, subset)
            if left >= 0:
                best, lowest = subset, costs[subset]
    if best > 0:
        for bit in range(count):
            if best & (1 << bit):
                fleet.jobs[found[bit]].mark = CHOSEN
    return lowest


@inner
def _whole_gpus(fleet: Fleet, node: int, count: int) -> bool:
    """Note in `scratch[1]` how many whole GPUs each listed job has here; True if some GPU is shared."""
    has_shared = False
    for place in range(count):
        fleet.scratch[1, place] = 0
    worker = fleet.nodes[node].first
    while worker >= 0:
        job = fleet.workers[worker].job
        has_shared = has_shared or fleet.jobs[job].gpus == 0
        for place in range(count):
            if fleet.scratch[0, place] == job:
                fleet.scratch[1, place] += fleet.jobs[job].gpus
        worker = fleet.workers[worker].next
    return has_shared


@inner
def _shared_freed(fleet: Fleet, node: int, count: int, subset: int) -> int:
    for bit in range(count):
        if subset & (1 << bit):
            fleet.jobs[fleet.scratch[0, bit]].mark = CHOSEN
    number = 0
    for slot in range(fleet.nodes[node].size):
        number += 1 if _slot_is_freed(fleet, node, slot, CHOSEN) else 0
    unmark(fleet, count)
    return number
