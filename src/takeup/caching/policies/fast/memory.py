"""The memory of the workers on arrays: reads, evictions and puts, with the order of events of `simulate`."""

from __future__ import annotations

from takeup.caching.policies.fast.heap import has_lower_rank, pop, push, sift, top
from takeup.caching.policies.fast.layout import DAG, FIFO, GDSF, GHOST, LFU, LOST, LRC, OPEN, SIEVE, STORED, ReplayState
from takeup.caching.policies.fast.queues import choose_queued, enter_queue, record_read, unqueue
from takeup.caching.policies.fast.ranks import first_user, last_user, refresh_group, set_keys
from takeup.caching.policies.fast.table import reopen_producers, set_missing
from takeup.core.compiled import bare, inlined


@inlined
def touch(run: ReplayState, block: int) -> None:
    """Update the policy's state for a read from memory."""
    record = run.blocks[block]
    if run.rules.policy >= SIEVE:
        record_read(run, block)
        return
    run.totals[0].clock += 1
    if run.rules.policy != FIFO:
        record.last_used = run.totals[0].clock
    record.frequency += 1
    _set_history_key(run, block)
    sift(run, record.worker, record.heap_place)


@bare
def put(run: ReplayState, block: int, task: int) -> None:
    """Store the block if the policy makes room for it; the inputs of `task` are pinned."""
    record = run.blocks[block]
    if run.rules.policy == DAG:
        _describe(run, block)
    was_lost = record.status == LOST
    record.status = STORED
    if was_lost:
        set_missing(run, block, -1)
    returning = record.queue == GHOST
    if returning:
        unqueue(run, block)
    if run.rules.admission:
        set_keys(run, block)
    num_chosen = choose_queued(run, block, task) if run.rules.policy >= SIEVE else _choose(run, block, task)
    if run.rules.policy == GDSF:
        num_chosen = _compete(run, block, num_chosen)
    if num_chosen < 0:
        run.totals[0].refused += 1
        record.status = LOST
        set_missing(run, block, 1)
        _leave_memory(run, block)
        return
    run.totals[0].used_now += record.bytes
    run.totals[0].inactive_now += record.bytes if record.rc == 0 else 0
    for place in range(num_chosen):
        _evict(run, run.scratch[place].chosen)
    _enter(run, block, returning)


@inlined
def _enter(run: ReplayState, block: int, returning: bool) -> None:
    """Insert the block into the policy's structures."""
    record = run.blocks[block]
    run.workers[record.worker].free_bytes -= record.bytes
    if run.rules.policy >= SIEVE:
        record.frequency = 0
        enter_queue(run, block, returning)
        return
    run.totals[0].clock += 1
    record.last_used = run.totals[0].clock
    record.frequency = 1
    if run.rules.policy == LFU or run.rules.policy >= LRC:
        set_keys(run, block)
    push(run, record.worker, block)


@inlined
def _set_history_key(run: ReplayState, block: int) -> None:
    """The rank of the policies that count reads, set whenever the block is used."""
    record = run.blocks[block]
    if run.rules.policy == LFU:
        record.key1 = float(record.frequency)
    elif run.rules.policy == GDSF:
        record.key1 = run.workers[record.worker].age + record.frequency / record.bytes


@inlined
def _compete(run: ReplayState, block: int, num_chosen: int) -> int:
    """See `GreedyDualSizeFrequency.make_room`: the incoming block is refused if it ranks below one of its victims."""
    record, worker = run.blocks[block], run.workers[run.blocks[block].worker]
    record.key1 = worker.age + 1 / record.bytes
    if num_chosen <= 0:
        return num_chosen
    highest = run.blocks[run.scratch[num_chosen - 1].chosen].key1
    worker.age = max(worker.age, min(highest, record.key1))
    if highest <= record.key1:
        return num_chosen
    for place in range(num_chosen):
        push(run, record.worker, run.scratch[place].chosen)
    return -1


@inlined
def _leave_memory(run: ReplayState, block: int) -> None:
    record = run.blocks[block]
    if not run.rules.recompute and not record.on_disk:
        record.on_disk = 1
        run.totals[0].written_bytes += record.bytes
    reopen_producers(run, block)


@inlined
def _evict(run: ReplayState, block: int) -> None:
    record, worker = run.blocks[block], run.workers[run.blocks[block].worker]
    worker.free_bytes += record.bytes
    run.totals[0].used_now -= record.bytes
    run.totals[0].inactive_now -= record.bytes if record.rc == 0 else 0
    record.status = LOST
    run.totals[0].evictions += 1
    run.totals[0].broadcasts += set_missing(run, block, 1)
    _leave_memory(run, block)


@bare
def _choose(run: ReplayState, block: int, task: int) -> int:
    """Put the victims for `block` into `chosen` and off the heap; returns their number, or -1 if it is refused."""
    worker, size_bytes = run.blocks[block].worker, run.blocks[block].bytes
    free_bytes, num_chosen, num_aside = run.workers[worker].free_bytes, 0, 0
    if size_bytes > run.rules.worker_bytes:
        return -1
    while free_bytes < size_bytes and run.workers[worker].heap_size > 0:
        victim = top(run, worker)
        if run.rules.admission and run.blocks[victim].rc > 0 and not has_lower_rank(run, victim, block):
            break
        pop(run, worker)
        if run.blocks[victim].pinned_by == task:
            run.scratch[num_aside].aside = victim
            num_aside += 1
        else:
            run.scratch[num_chosen].chosen = victim
            num_chosen += 1
            free_bytes += run.blocks[victim].bytes
    for place in range(num_aside):
        push(run, worker, run.scratch[place].aside)
    if free_bytes >= size_bytes:
        return num_chosen
    for place in range(num_chosen):
        push(run, worker, run.scratch[place].chosen)
    return -1


@bare
def _describe(run: ReplayState, block: int) -> None:
    """Set the block's restore cost, used only by DAG; if it changed, refresh its open groups where they are tracked."""
    record, cost_s = run.blocks[block], _cost_s(run, block)
    changed = cost_s != record.cost_s
    record.cost_s = cost_s
    if changed and run.rules.tracks_groups:
        for place in range(first_user(run, block), last_user(run, block)):
            if run.tasks[run.users[place]].consumer == OPEN:
                refresh_group(run, run.users[place])


@inlined
def _cost_s(run: ReplayState, block: int) -> float:
    """See `Simulation._cost_s`."""
    record, task = run.blocks[block], run.blocks[block].producer
    if not run.rules.recompute or task < 0:
        return record.bytes / run.rules.disk_bytes_per_s * (1 if record.on_disk else 2)
    seconds = 0.0
    for place in range(run.tasks[task].inputs, run.tasks[task + 1].inputs):
        needed = run.blocks[run.inputs[place].block]
        seconds += needed.cost_s if needed.status == LOST else 0.0
    return run.tasks[task].compute_s + seconds
