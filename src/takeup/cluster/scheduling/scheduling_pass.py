"""Numba kernel: one scheduling pass, everything that is decided about a pool at one moment.

How it works. Jobs with reserved GPUs start first, then high-priority jobs, then spot jobs, each queue in its order.
Behind a job that does not fit, or for which no quota is left, jobs that ask for at least as much are skipped. The pass
changes the pool as if its decisions were carried out at once, and writes each into the log.
"""

import numpy as np

from takeup.cluster.scheduling import counters, layout
from takeup.cluster.scheduling.layout import Fleet
from takeup.cluster.scheduling.placement import (
    agreed_victims,
    can_move,
    clear_plan,
    hold_back,
    place_gang,
    plan_gang,
    reserve,
)
from takeup.cluster.scheduling.rules import BY_SIZE, NOBODY, STOP, SchedulerRules
from takeup.cluster.scheduling.victims import lost_gpu_s, restart_gpu_s
from takeup.core.arrays import Floats, Ints
from takeup.core.compiled import inner, kernel

HIGH, GUARANTEED, OPPORTUNISTIC = range(3)
DONE, NO_ROOM, NOT_ALLOWED = range(3)  # what became of a job that was tried
TINY = 1e-9
MOVE_S = 300.0  # within this time a move must pay


@kernel
def run_pass(fleet: Fleet, now_s: float, hours: Floats, quota_gpus: Floats, rules: SchedulerRules) -> None:
    """Run a full pass; `quota_gpus[i]` GPUs may be promised for `hours[i]`, in rising order of hours."""
    _begin(fleet)
    if rules.lease_s > 0:
        _end_leases(fleet, now_s, rules)
    for is_spot in (False, True):
        if fleet.totals[layout.NUM_NOMINATED] > 0:
            _start_nominated(fleet, is_spot, now_s, hours, quota_gpus, rules)
    if fleet.totals[layout.NUM_WAITING_HIGH] > 0:
        _serve(fleet, False, now_s, hours, quota_gpus, rules)
        _serve_patient(fleet, now_s, hours, quota_gpus, rules)
    if fleet.totals[layout.NUM_WAITING_SPOT] > 0:
        _serve(fleet, True, now_s, hours, quota_gpus, rules)
    if rules.moves:
        for is_spot in (False, True):
            _serve_by_moves(fleet, is_spot, now_s, hours, quota_gpus, rules)


@kernel
def run_arrival_pass(
    fleet: Fleet, job: int, now_s: float, hours: Floats, quota_gpus: Floats, rules: SchedulerRules
) -> None:
    """The same pass if only this job has arrived since the last one: no other waiting job can start."""
    _begin(fleet)
    is_spot = fleet.jobs[job].kind == 1 and not rules.one_queue
    queue, counter = counters.queue_of(fleet, is_spot)
    stops = (rules.spot_failure if is_spot else rules.high_failure) == STOP
    if stops and queue[0] != job:
        return
    if _try(fleet, job, now_s, hours, quota_gpus, rules) == DONE:
        _remove(queue, fleet.totals, counter, job)
    if fleet.totals[layout.NUM_LEFT] > 0:  # jobs were evicted, and may have freed GPUs elsewhere
        _serve_patient(fleet, now_s, hours, quota_gpus, rules)
        _serve(fleet, True, now_s, hours, quota_gpus, rules)


@inner
def _begin(fleet: Fleet) -> None:
    for place in (layout.NUM_LOGGED, layout.NUM_LEFT, layout.HAS_QUOTES):
        fleet.totals[place] = 0
    fleet.totals[layout.REFUSED_JOB] = -1


@inner
def _serve(fleet: Fleet, is_spot: bool, now_s: float, hours: Floats, quota_gpus: Floats, rules: SchedulerRules) -> None:
    queue, counter = counters.queue_of(fleet, is_spot)
    stops = (rules.spot_failure if is_spot else rules.high_failure) == STOP
    fewest_failed = fleet.scratch[2]
    fewest_failed[:] = 1 << 40
    least_share_failed = least_refused = 1 << 40
    refused_h, shadow_s, seats = -1.0, np.inf, fleet.planned[:0].copy()
    if rules.ageing_s > 0:
        _serve_starved(fleet, is_spot, now_s, hours, quota_gpus, rules)
    by_size = (rules.spot_order if is_spot else rules.high_order) == BY_SIZE
    num_kept, place, num_waiting, head_gpus = 0, 0, fleet.totals[counter], 0
    while place < num_waiting:
        job = queue[place]
        it = fleet.jobs[job]
        level = min(it.gpus, len(fewest_failed) - 1)
        if by_size and (
            (it.gpus > 0 and fewest_failed[level] <= 1) or (it.gpus == 0 and it.milli >= least_share_failed)
        ):
            smaller = _first_below(fleet, queue, place, num_waiting, it.milli)
            num_kept, place = _move_up(queue, place, smaller, num_kept), smaller
            continue
        place += 1
        is_hopeless = it.workers >= fewest_failed[level] or (it.gpus == 0 and it.milli >= least_share_failed)
        outcome = NO_ROOM
        if it.guarantee_h == refused_h and _total_milli(fleet, job) >= least_refused:
            outcome = NOT_ALLOWED  # what is held only grows while a queue is served
        elif not is_hopeless and it.nominated < 0:
            is_late = now_s + it.limit_s > shadow_s
            hold_back(fleet, seats, head_gpus if is_late else 0)
            outcome = _try(fleet, job, now_s, hours, quota_gpus, rules)
            hold_back(fleet, seats, -head_gpus if is_late else 0)
            if rules.reserves and outcome == NO_ROOM and head_gpus == 0:
                shadow_s, seats = reserve(fleet, job)
                head_gpus = max(1, it.gpus)
            # One with a mask may have failed for its nodes only, one that ends late for the nodes of the first.
            is_general = outcome == NO_ROOM and it.mask < 0 and not is_late
            if is_general and it.gpus > 0:
                for larger in range(level, len(fewest_failed) if by_size else level + 1):
                    fewest_failed[larger] = min(fewest_failed[larger], it.workers)
            elif is_general and it.workers == 1:
                least_share_failed = min(least_share_failed, it.milli)
            elif outcome == NOT_ALLOWED and is_spot and not rules.opportunistic:
                least_refused = min(least_refused if it.guarantee_h == refused_h else 1 << 40, _total_milli(fleet, job))
                refused_h = it.guarantee_h
        if outcome != DONE:
            queue[num_kept] = job
            num_kept += 1
            if stops:
                break
    fleet.totals[counter] = _move_up(queue, place, num_waiting, num_kept)


@inner
def _serve_patient(fleet: Fleet, now_s: float, hours: Floats, quota_gpus: Floats, rules: SchedulerRules) -> None:
    """Serve the high-priority queue again after evictions: a job that does not evict may fit in what they freed."""
    num_seen = 0
    while (
        rules.wait_price < np.inf
        and fleet.totals[layout.NUM_LEFT] > num_seen
        and fleet.totals[layout.NUM_WAITING_HIGH] > 0
    ):
        num_seen = fleet.totals[layout.NUM_LEFT]
        for place in range(fleet.totals[layout.NUM_WAITING_HIGH]):
            fleet.jobs[fleet.high_queue[place]].retry_s = now_s
        _serve(fleet, False, now_s, hours, quota_gpus, rules)


@inner
def _move_up(queue: Ints, begin: int, end: int, to: int) -> int:
    """Shift a slice of a queue forward to close a gap; returns the index behind it."""
    if to < begin:
        for place in range(begin, end):
            queue[to + place - begin] = queue[place]
    return to + end - begin


@inner
def _first_below(fleet: Fleet, queue: Ints, low: int, high: int, milli: int) -> int:
    """Index in a queue sorted by size of the first job that asks for less than `milli` per worker."""
    while low < high:
        middle = (low + high) // 2
        if fleet.jobs[queue[middle]].milli < milli:
            high = middle
        else:
            low = middle + 1
    return low


@inner
def _serve_starved(
    fleet: Fleet, is_spot: bool, now_s: float, hours: Floats, quota_gpus: Floats, rules: SchedulerRules
) -> None:
    """Serve over-age jobs first, oldest first, until one cannot start."""
    queue, counter = counters.queue_of(fleet, is_spot)
    while fleet.totals[counter] > 0:
        oldest = _oldest(fleet, is_spot, rules)
        it = fleet.jobs[oldest]
        is_due = now_s - it.since_s > rules.ageing_s and it.nominated < 0
        if not is_due or _try(fleet, oldest, now_s, hours, quota_gpus, rules) != DONE:
            return
        _remove(queue, fleet.totals, counter, oldest)


@inner
def _oldest(fleet: Fleet, is_spot: bool, rules: SchedulerRules) -> int:
    """The earliest submitted job of a queue that is not empty."""
    job = fleet.totals[layout.FIRST_WAITING + int(is_spot)]
    while not (fleet.jobs[job].waiting == 1 and is_spot == (fleet.jobs[job].kind == 1 and not rules.one_queue)):
        job += 1
    fleet.totals[layout.FIRST_WAITING + int(is_spot)] = job
    return int(job)


@inner
def _remove(queue: Ints, totals: Ints, counter: int, job: int) -> None:
    place = 0
    while queue[place] != job:
        place += 1
    for later in range(place + 1, totals[counter]):
        queue[later - 1] = queue[later]
    totals[counter] -= 1


@inner
def _try(fleet: Fleet, job: int, now_s: float, hours: Floats, quota_gpus: Floats, rules: SchedulerRules) -> int:
    if fleet.jobs[job].kind == 0:
        return _try_high(fleet, job, now_s, rules)
    grade = _terms(fleet, job, now_s, hours, quota_gpus, rules)
    if grade < 0:
        return NOT_ALLOWED
    if not place_gang(fleet, job, rules.score):
        return NO_ROOM
    counters.note_start(fleet, job, grade, now_s, 0)
    return DONE


@inner
def allowed_gpus(hours: Floats, quota_gpus: Floats, asked_h: float) -> float:
    """How many GPUs may be promised for at least `asked_h` hours."""
    for place in range(len(hours)):
        if hours[place] >= asked_h - TINY:
            return float(quota_gpus[place])
    return 0.0


@kernel
def quota_in_use_milli(fleet: Fleet, rules: SchedulerRules) -> int:
    """What counts against the quota: runs whose promised hours are not over; as printed all spot runs."""
    place = layout.PROMISED_MILLI if rules.opportunistic else layout.RUNNING_MILLI + GUARANTEED
    return int(fleet.totals[place])


@inner
def _total_milli(fleet: Fleet, job: int) -> int:
    return int(fleet.jobs[job].milli * fleet.jobs[job].workers)


@inner
def _terms(fleet: Fleet, job: int, now_s: float, hours: Floats, quota_gpus: Floats, rules: SchedulerRules) -> int:
    """On which terms a spot job may run now; -1 if on none."""
    it = fleet.jobs[job]
    if not rules.uses_quota:
        return OPPORTUNISTIC
    most_milli = 1000.0 * allowed_gpus(hours, quota_gpus, it.guarantee_h) + TINY
    if (it.guarantee_h > 0 or not rules.opportunistic) and quota_in_use_milli(fleet, rules) + _total_milli(
        fleet, job
    ) <= most_milli:
        return GUARANTEED
    if rules.opportunistic:
        return OPPORTUNISTIC
    return -1


@inner
def _try_high(fleet: Fleet, job: int, now_s: float, rules: SchedulerRules) -> int:
    if not rules.straight and place_gang(fleet, job, rules.score):
        counters.note_start(fleet, job, HIGH, now_s, 0)
        return DONE
    if now_s < fleet.jobs[job].retry_s or _is_like_refused(fleet, job):
        return NOT_ALLOWED
    if rules.victims == NOBODY or not plan_gang(fleet, job, now_s, rules):
        return NO_ROOM
    it = fleet.jobs[job]
    high_milli = fleet.totals[layout.RUNNING_MILLI + HIGH] + it.milli * it.workers
    if high_milli > 1000 * rules.high_share * fleet.totals[layout.ALL_GPUS]:
        clear_plan(fleet)
        return NO_ROOM
    victims = agreed_victims(fleet)
    pays_s = it.since_s + _pays_after_s(fleet, job, victims, now_s, rules)
    if now_s < pays_s:
        clear_plan(fleet)
        _retry(fleet, job, now_s, pays_s)
        fleet.totals[layout.REFUSED_JOB] = job
        return NOT_ALLOWED
    return _evict_for(fleet, job, HIGH, victims, now_s, rules)


@inner
def _is_like_refused(fleet: Fleet, job: int) -> bool:
    """Whether evictions did not pay in this pass for a job of the same shape that has waited at least as long."""
    other = fleet.totals[layout.REFUSED_JOB]
    if other < 0:
        return False
    mine, theirs = fleet.jobs[job], fleet.jobs[other]
    is_alike = mine.milli == theirs.milli and mine.workers == theirs.workers and mine.mask == theirs.mask
    return bool(is_alike and mine.since_s >= theirs.since_s)


@inner
def _evict_for(fleet: Fleet, job: int, grade: int, victims: Ints, now_s: float, rules: SchedulerRules) -> int:
    """Carry out the plan: start the job in place of its victims, or reserve their GPUs until they have saved."""
    lost = np.zeros(len(victims))
    for place in range(len(victims)):
        lost[place] = lost_gpu_s(fleet, victims[place], now_s)
    clear_plan(fleet)
    it = fleet.jobs[job]
    if rules.notice_s > 0 and lost.sum() > rules.notice_s * it.milli * it.workers / 1000.0:
        for place in range(len(victims)):
            fleet.jobs[victims[place]].leaving_for = job
            counters.append_log(fleet, layout.NOTICED, victims[place], job, rules.notice_s, lost[place])
        counters.nominate(fleet, job, fleet.planned[: it.workers])
        return NOT_ALLOWED
    for place in range(len(victims)):
        counters.evict(fleet, victims[place], job, now_s, lost[place], rules)
    for worker in range(it.workers):
        counters.place_worker(fleet, it.first_worker + worker, fleet.planned[worker])
    counters.note_start(fleet, job, grade, now_s, len(victims))
    return DONE


# Whether an eviction pays. A job that waits costs its price each second; when that exceeds what the eviction destroys,
# it is carried out. Without knowledge of the future no rule has a better worst case than this one (ski rental): waiting
# costs at most as much again as the eviction. GPUs that a broken gang leaves idle count against the price, for they are
# idle as long as the job runs or until as much is free as it could have waited for.


@inner
def _pays_after_s(fleet: Fleet, job: int, victims: Ints, now_s: float, rules: SchedulerRules) -> float:
    """How long a wait is as expensive as what the evictions destroy."""
    if rules.wait_price == np.inf:
        return 0.0
    it = fleet.jobs[job]
    num_gpus, spare_milli = it.milli * it.workers / 1000.0, -it.milli * it.workers
    for place in range(len(victims)):
        spare_milli += fleet.jobs[victims[place]].milli * fleet.jobs[victims[place]].workers
    cost_per_s = rules.wait_price * num_gpus - _left_idle(fleet, spare_milli) / 1000.0
    return float(_cost_gpu_s(fleet, job, victims, now_s, rules) / cost_per_s) if cost_per_s > 0 else np.inf


@inner
def _retry(fleet: Fleet, job: int, now_s: float, when_s: float) -> None:
    """Plan again when it may pay, but in a second at the earliest, and in a minute at the latest."""
    fleet.jobs[job].retry_s = min(max(when_s, now_s + 1.0), now_s + 60.0)


@inner
def _cost_gpu_s(fleet: Fleet, job: int, victims: Ints, now_s: float, rules: SchedulerRules) -> float:
    """GPU-seconds that evictions destroy: lost work, or the notice in which it is saved, and restarts."""
    lost, restarts = 0.0, 0.0
    for place in range(len(victims)):
        lost += lost_gpu_s(fleet, victims[place], now_s)
        restarts += restart_gpu_s(fleet, victims[place], rules)
    if rules.notice_s > 0:
        lost = min(lost, rules.notice_s * fleet.jobs[job].milli * fleet.jobs[job].workers / 1000.0)
    return lost + restarts


@inner
def _left_idle(fleet: Fleet, spare_milli: int) -> int:
    """What no waiting spot job can use of what a plan frees beyond its need, in thousandths of a GPU."""
    place = fleet.totals[layout.NUM_WAITING_SPOT] - 1
    while place >= 0 and spare_milli > 0:
        it = fleet.jobs[fleet.spot_queue[place]]
        if it.milli * it.workers <= spare_milli:
            spare_milli -= it.milli * it.workers
        place -= 1
    return max(0, spare_milli)


# Moves: idle GPUs may be enough for a job that waits, but scattered. Narrower spot jobs without a promise then leave a
# node if all of them fit elsewhere at once: nothing waits longer, and more GPUs are in use. A move must pay too.


@inner
def _serve_by_moves(
    fleet: Fleet, is_spot: bool, now_s: float, hours: Floats, quota_gpus: Floats, rules: SchedulerRules
) -> None:
    """Try to start each waiting job by moves, widest first where the queue is by size."""
    queue, counter = counters.queue_of(fleet, is_spot)
    waiting = queue[: fleet.totals[counter]].copy()
    failed_gpus, failed_workers = -1, 0
    for place in range(len(waiting)):
        it = fleet.jobs[waiting[place]]
        if it.gpus < 2 or it.nominated >= 0 or it.waiting == 0 or now_s < it.retry_s:
            continue
        if fleet.totals[layout.FREE_GPUS] < it.gpus * it.workers:
            continue
        if it.gpus == failed_gpus and it.workers >= failed_workers:
            continue
        outcome = _try_by_moves(fleet, waiting[place], now_s, hours, quota_gpus, rules)
        if outcome == DONE:
            _remove(queue, fleet.totals, counter, waiting[place])
            _serve(fleet, True, now_s, hours, quota_gpus, rules)
        elif it.nominated < 0:
            _retry(fleet, waiting[place], now_s, now_s + 0.1 * (now_s - it.since_s))
            if outcome == NO_ROOM:
                failed_gpus, failed_workers = it.gpus, it.workers


@inner
def _try_by_moves(
    fleet: Fleet, job: int, now_s: float, hours: Floats, quota_gpus: Floats, rules: SchedulerRules
) -> int:
    it = fleet.jobs[job]
    grade = HIGH if it.kind == 0 else _terms(fleet, job, now_s, hours, quota_gpus, rules)
    if grade < 0:
        return NOT_ALLOWED
    fleet.totals[layout.MOVED_BELOW] = it.gpus
    is_possible = plan_gang(fleet, job, now_s, rules)
    fleet.totals[layout.MOVED_BELOW] = 0
    if not is_possible:
        return NO_ROOM
    victims = agreed_victims(fleet)
    num_gpus = it.milli * it.workers / 1000.0
    price = 1.0 if it.kind == 1 else 1.0 + rules.wait_price
    if _cost_gpu_s(fleet, job, victims, now_s, rules) > price * num_gpus * min(MOVE_S, now_s - it.since_s):
        clear_plan(fleet)
        return NOT_ALLOWED
    if not can_move(fleet, victims):
        clear_plan(fleet)
        return NO_ROOM
    return _evict_for(fleet, job, grade, victims, now_s, rules)


@inner
def _start_nominated(
    fleet: Fleet, is_spot: bool, now_s: float, hours: Floats, quota_gpus: Floats, rules: SchedulerRules
) -> None:
    queue, counter = counters.queue_of(fleet, is_spot)
    waiting = queue[: fleet.totals[counter]].copy()
    for place in range(len(waiting)):
        job = waiting[place]
        if fleet.jobs[job].nominated >= 0 and _place_as_nominated(fleet, job):
            terms = HIGH if fleet.jobs[job].kind == 0 else _terms(fleet, job, now_s, hours, quota_gpus, rules)
            counters.note_start(fleet, job, terms if terms >= 0 else OPPORTUNISTIC, now_s, 1)
            _remove(queue, fleet.totals, counter, job)


@inner
def _place_as_nominated(fleet: Fleet, job: int) -> bool:
    it = fleet.jobs[job]
    first, asked = it.first_worker, max(1, it.gpus)
    counters.withdraw(fleet, job)
    for worker in range(first, first + it.workers):
        node = fleet.workers[worker].node
        if counters.available(fleet, node) < asked:
            for seated in range(first, worker):
                counters.remove_worker(fleet, seated)
            nodes = np.empty(it.workers, np.int64)
            for place in range(it.workers):
                nodes[place] = fleet.workers[first + place].node
            counters.nominate(fleet, job, nodes)
            return False
        counters.place_worker(fleet, worker, node)
    return True


@inner
def _end_leases(fleet: Fleet, now_s: float, rules: SchedulerRules) -> None:
    """Requeue every job that started before the current lease period."""
    boundary_s = np.floor(now_s / rules.lease_s) * rules.lease_s
    running = np.sort(fleet.running[: fleet.totals[layout.NUM_RUNNING]])
    for place in range(len(running)):
        job = running[place]
        it = fleet.jobs[job]
        if it.start_s < boundary_s:
            counters.append_log(fleet, layout.LEASE_OVER, job, -1, now_s - it.start_s, 0.0)
            counters.release_nodes(fleet, job)
            it.limit_s = max(0.0, it.limit_s - (now_s - it.start_s))
            counters.enqueue(fleet, job, now_s, rules)
