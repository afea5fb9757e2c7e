"""Numba kernels: counters of a pool. Workers are placed on nodes and removed; jobs start, are evicted, and queue."""

import numpy as np

from takeup.cluster.scheduling import layout
from takeup.cluster.scheduling.layout import Fleet
from takeup.cluster.scheduling.rules import BY_FEWEST, BY_SHORTEST, BY_SIZE, SchedulerRules
from takeup.core.arrays import Floats, Ints
from takeup.core.compiled import inlined, inner, kernel


@inlined
def available(fleet: Fleet, node: int) -> int:
    """Whole GPUs of a node that are neither held nor reserved."""
    it = fleet.nodes[node]
    return max(0, it.free - it.reserved) if it.healthy else 0


@inlined
def may_use(fleet: Fleet, job: int, node: int) -> bool:
    """Whether a job is allowed on a node."""
    mask = fleet.jobs[job].mask
    return bool(mask < 0 or fleet.masks[mask, node])


@inner
def queue_of(fleet: Fleet, is_spot: bool) -> tuple[Ints, int]:
    """One of the two queues, and the place of `totals` that counts it."""
    if is_spot:
        return fleet.spot_queue, layout.NUM_WAITING_SPOT
    return fleet.high_queue, layout.NUM_WAITING_HIGH


@inlined
def forget_quotes(fleet: Fleet, node: int) -> None:
    """Something has changed on a node: its prices must be computed again, and whether it is the best of its block."""
    if fleet.totals[layout.HAS_QUOTES] == 1:
        for row in range(len(fleet.quotes)):
            fleet.quotes[row, node, 0] = np.nan
    for row in range(len(fleet.best)):
        fleet.best[row, node // layout.BLOCK].node = layout.STALE


@inlined
def keep_free(fleet: Fleet, node: int, gpus: int) -> None:
    """Reserve GPUs of a node, or fewer of them."""
    fleet.nodes[node].reserved += gpus
    forget_quotes(fleet, node)


@inlined
def fragmentation(free: int, artifact: bool) -> float:
    """How many of `free` GPUs on a node a typical request cannot use (Weng et al., ATC 2023).

    Of all requests 10 % ask for two GPUs, 5 % for four and 50 % for eight; those for one can use any.
    """
    if artifact:
        return 0.10 * (free - free // 2) + 0.05 * (free - free // 4) + 0.50 * (free - free // 8)
    return 0.10 * (free % 2) + 0.05 * (free % 4) + 0.50 * (free % 8)


@inlined
def saved_at(fleet: Fleet, job: int, now_s: float) -> float:
    """When a running job's work was last safe: its last checkpoint, or its start."""
    it = fleet.jobs[job]
    if now_s < it.first_save_s:
        return float(it.start_s)
    if not np.isfinite(it.checkpoint_s):
        return float(it.first_save_s)
    return float(it.first_save_s + np.floor((now_s - it.first_save_s) / it.checkpoint_s) * it.checkpoint_s)


@inner
def place_worker(fleet: Fleet, worker: int, node: int) -> None:
    """Place a worker on a node where it fits; a fractional one takes the fullest GPU it fits on."""
    job = fleet.jobs[fleet.workers[worker].job]
    it = fleet.nodes[node]
    fleet.workers[worker].node = node
    _link(fleet, worker, node)
    forget_quotes(fleet, node)
    if job.kind == 0:
        it.high_milli += job.milli
    else:
        it.spot_milli += job.milli
    if job.gpus > 0:
        _take(fleet, node, -job.gpus, -job.gpus if job.kind == 0 else 0)
        return
    slot = fullest_fit(fleet, node, job.milli)
    if slot < 0:
        slot = _empty_slot(fleet, node)
        _take(fleet, node, -1, 0)
        fleet.totals[layout.SHARE_ROOM_MILLI] += 1000
    fleet.workers[worker].slot = slot
    fleet.share_room_milli[node, slot] -= job.milli
    fleet.totals[layout.SHARE_ROOM_MILLI] -= job.milli
    if job.kind == 0:
        _take(fleet, node, 0, -1 if fleet.share_high[node, slot] == 0 else 0)
        fleet.share_high[node, slot] += 1


@inlined
def _take(fleet: Fleet, node: int, free: int, for_high: int) -> None:
    """Add deltas to the free and non-high counters; negative deltas allocate."""
    fleet.nodes[node].free += free
    fleet.nodes[node].high_gpus -= for_high
    fleet.totals[layout.FREE_GPUS] += free
    fleet.totals[layout.HIGH_GPUS] -= for_high


@inlined
def fullest_fit(fleet: Fleet, node: int, milli: int) -> int:
    """The shared GPU of a node with the least sufficient free share; -1 if there is none."""
    best, least = -1, 1000
    for slot in range(fleet.nodes[node].size):
        room = fleet.share_room_milli[node, slot]
        if milli <= room < least:
            best, least = slot, room
    return best


@inner
def _empty_slot(fleet: Fleet, node: int) -> int:
    for slot in range(fleet.nodes[node].size):
        if fleet.share_room_milli[node, slot] == 1000:
            return slot
    return 0  # cannot happen: at most one slot for each GPU is in use


@inlined
def _link(fleet: Fleet, worker: int, node: int) -> None:
    first = fleet.nodes[node].first
    fleet.workers[worker].next = first
    fleet.workers[worker].previous = -1
    if first >= 0:
        fleet.workers[first].previous = worker
    fleet.nodes[node].first = worker


@inner
def remove_worker(fleet: Fleet, worker: int) -> None:
    """Remove a worker from its node."""
    mine = fleet.workers[worker]
    job, node = fleet.jobs[mine.job], mine.node
    it = fleet.nodes[node]
    forget_quotes(fleet, node)
    if mine.previous >= 0:
        fleet.workers[mine.previous].next = mine.next
    else:
        it.first = mine.next
    if mine.next >= 0:
        fleet.workers[mine.next].previous = mine.previous
    if job.kind == 0:
        it.high_milli -= job.milli
    else:
        it.spot_milli -= job.milli
    if job.gpus > 0:
        _take(fleet, node, job.gpus, job.gpus if job.kind == 0 else 0)
        return
    fleet.share_room_milli[node, mine.slot] += job.milli
    fleet.totals[layout.SHARE_ROOM_MILLI] += job.milli
    if job.kind == 0:
        fleet.share_high[node, mine.slot] -= 1
        _take(fleet, node, 0, 1 if fleet.share_high[node, mine.slot] == 0 else 0)
    if fleet.share_room_milli[node, mine.slot] == 1000:
        fleet.totals[layout.SHARE_ROOM_MILLI] -= 1000
        _take(fleet, node, 1, 0)


@inlined
def append_log(fleet: Fleet, what: int, job: int, other: int, ran_s: float, lost_gpu_s: float) -> None:
    """Add a line to the log."""
    line = fleet.log[fleet.totals[layout.NUM_LOGGED]]
    line.what, line.job, line.other, line.grade = what, job, other, fleet.jobs[job].grade
    line.ran_s, line.lost_gpu_s = ran_s, lost_gpu_s
    fleet.totals[layout.NUM_LOGGED] += 1
    fleet.totals[layout.REFUSED_JOB] = -1


@inlined
def note_start(fleet: Fleet, job: int, grade: int, now_s: float, preempted: int) -> None:
    """Mark a job whose workers are all placed as running from now on."""
    it = fleet.jobs[job]
    it.running, it.waiting, it.grade, it.start_s, it.first_save_s = 1, 0, grade, now_s, np.inf
    it.place = fleet.totals[layout.NUM_RUNNING]
    fleet.running[it.place] = job
    fleet.totals[layout.NUM_RUNNING] += 1
    fleet.totals[layout.RUNNING_MILLI + grade] += it.milli * it.workers
    if grade == 1 and it.guarantee_h > 0:
        it.promised = 1
        fleet.totals[layout.PROMISED_MILLI] += it.milli * it.workers
    append_log(fleet, layout.STARTED, job, preempted, 0.0, 0.0)


@inlined
def end_promise(fleet: Fleet, job: int) -> None:
    """The promised hours of a run are over, or the run is."""
    it = fleet.jobs[job]
    if it.promised == 1:
        it.promised = 0
        fleet.totals[layout.PROMISED_MILLI] -= it.milli * it.workers


@kernel
def resume(fleet: Fleet, job: int, nodes: Ints, grade: int, start_s: float, first_save_s: float) -> None:
    """Place a job that is already running, one node for each worker."""
    it = fleet.jobs[job]
    for worker in range(it.workers):
        place_worker(fleet, it.first_worker + worker, nodes[worker])
    note_start(fleet, job, grade, start_s, 0)
    it.first_save_s = first_save_s
    fleet.totals[layout.NUM_LOGGED] = 0


@inner
def release_nodes(fleet: Fleet, job: int) -> None:
    """Release all GPUs of a running job; it is then neither running nor waiting."""
    it = fleet.jobs[job]
    for worker in range(it.first_worker, it.first_worker + it.workers):
        remove_worker(fleet, worker)
    last = fleet.running[fleet.totals[layout.NUM_RUNNING] - 1]
    fleet.running[it.place] = last
    fleet.jobs[last].place = it.place
    fleet.totals[layout.NUM_RUNNING] -= 1
    fleet.totals[layout.RUNNING_MILLI + it.grade] -= it.milli * it.workers
    end_promise(fleet, job)
    it.running, it.place, it.leaving_for = 0, -1, -1


@inner
def evict(fleet: Fleet, job: int, for_job: int, now_s: float, lost: float, rules: SchedulerRules) -> None:
    """Evict a running job from its nodes, and queue it again."""
    it = fleet.jobs[job]
    for worker in range(it.first_worker, it.first_worker + it.workers):
        fleet.left_nodes[fleet.totals[layout.NUM_LEFT]] = fleet.workers[worker].node
        fleet.totals[layout.NUM_LEFT] += 1
    append_log(fleet, layout.EVICTED, job, for_job, now_s - it.start_s, lost)
    release_nodes(fleet, job)
    it.num_evictions += 1
    it.evicted_s = now_s
    enqueue(fleet, job, now_s, rules)


@inner
def goes_before(fleet: Fleet, job: int, other: int, order: int) -> bool:
    """Whether `job` precedes `other` in the queue; job numbers follow submission time."""
    mine, theirs = fleet.jobs[job], fleet.jobs[other]
    if order == BY_FEWEST and mine.milli * mine.workers != theirs.milli * theirs.workers:
        return bool(mine.milli * mine.workers < theirs.milli * theirs.workers)
    if order == BY_SHORTEST and mine.limit_s != theirs.limit_s:
        return bool(mine.limit_s < theirs.limit_s)
    if order == BY_SIZE:
        if mine.milli != theirs.milli:
            return bool(mine.milli > theirs.milli)
        if mine.kind == 1 and mine.workers != theirs.workers:
            return bool(mine.workers < theirs.workers)
    return job < other


@kernel
def enqueue(fleet: Fleet, job: int, since_s: float, rules: SchedulerRules) -> None:
    """Insert a job into its sorted queue."""
    it = fleet.jobs[job]
    it.since_s, it.retry_s, it.waiting = since_s, since_s, 1
    is_spot = it.kind == 1 and not rules.one_queue
    order = rules.spot_order if is_spot else rules.high_order
    queue, counter = queue_of(fleet, is_spot)
    low, high = 0, fleet.totals[counter]
    while low < high:
        middle = (low + high) // 2
        if goes_before(fleet, job, queue[middle], order):
            high = middle
        else:
            low = middle + 1
    for place in range(fleet.totals[counter], low, -1):
        queue[place] = queue[place - 1]
    queue[low] = job
    fleet.totals[counter] += 1
    oldest = layout.FIRST_WAITING + int(is_spot)
    fleet.totals[oldest] = min(job, fleet.totals[oldest])


@kernel
def nominate(fleet: Fleet, job: int, nodes: Ints) -> None:
    """Reserve GPUs on these nodes for a waiting job, one entry for each worker."""
    it = fleet.jobs[job]
    it.nominated = len(nodes)
    fleet.totals[layout.NUM_NOMINATED] += 1
    for worker in range(len(nodes)):
        fleet.workers[it.first_worker + worker].node = nodes[worker]
        keep_free(fleet, nodes[worker], max(1, it.gpus))


@inner
def withdraw(fleet: Fleet, job: int) -> None:
    """Cancel the reservation of a job."""
    it = fleet.jobs[job]
    for worker in range(it.first_worker, it.first_worker + it.nominated):
        keep_free(fleet, fleet.workers[worker].node, -max(1, it.gpus))
    it.nominated = -1
    fleet.totals[layout.NUM_NOMINATED] -= 1


# Numba kernels: many jobs of a state at once, since every call from Python costs as much as a decision ----------------


@kernel
def resume_all(
    fleet: Fleet, jobs: Ints, seats: Ints, grades: Ints, start_s: Floats, saved_s: Floats, now_s: float
) -> None:
    """Seat jobs that run already; `seats` has a node for each worker, job after job."""
    first = 0
    for place in range(len(jobs)):
        num_workers = fleet.jobs[jobs[place]].workers
        nodes = seats[first : first + num_workers]
        first_save_s = saved_s[place] if saved_s[place] > start_s[place] else np.inf
        resume(fleet, jobs[place], nodes, grades[place], start_s[place], first_save_s)
        if now_s - start_s[place] >= 3600.0 * fleet.jobs[jobs[place]].guarantee_h:
            end_promise(fleet, jobs[place])
        first += num_workers


@kernel
def enqueue_all(fleet: Fleet, jobs: Ints, since_s: Floats, rules: SchedulerRules) -> None:
    """Put jobs where they belong in their queues."""
    for place in range(len(jobs)):
        enqueue(fleet, jobs[place], since_s[place], rules)
