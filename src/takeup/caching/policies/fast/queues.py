"""SIEVE and S3-FIFO on arrays: per worker a small, a main and a ghost queue of linked blocks. SIEVE uses the small one.

A block is in at most one queue; `frequency` counts its reads there. See `sieve.py` and `s3fifo.py` for the rules.
"""

from __future__ import annotations

from takeup.caching.policies.fast.layout import GHOST, MAIN, NOWHERE, S3FIFO, SIEVE, SMALL, ReplayState
from takeup.caching.policies.s3fifo import MAX_READS, READS_TO_MAIN
from takeup.core.compiled import bare, inlined


@inlined
def _queue(worker: int, queue: int) -> int:
    return 3 * worker + queue - 1


@inlined
def _enqueue(run: ReplayState, block: int, queue: int) -> None:
    """Put the block at the new end of a queue of its worker."""
    record, ends = run.blocks[block], run.queues[_queue(run.blocks[block].worker, queue)]
    record.queue, record.older, record.newer = queue, ends.newest, -1
    if ends.newest >= 0:
        run.blocks[ends.newest].newer = block
    else:
        ends.oldest = block
    ends.newest = block
    ends.bytes += record.bytes


@inlined
def enter_queue(run: ReplayState, block: int, returning: bool) -> None:
    """Insert a stored block into its queue; until S3-FIFO first evicts, overflow of the small queue goes to main."""
    worker = run.blocks[block].worker
    small_is_full = run.queues[_queue(worker, SMALL)].bytes >= run.rules.small_bytes
    fills_up = run.rules.policy == S3FIFO and run.workers[worker].has_evicted == 0 and small_is_full
    _enqueue(run, block, MAIN if returning or fills_up else SMALL)


@inlined
def unqueue(run: ReplayState, block: int) -> None:
    """Remove the block from its queue; a hand that points to it advances."""
    record, worker = run.blocks[block], run.workers[run.blocks[block].worker]
    ends = run.queues[_queue(record.worker, record.queue)]
    if worker.hand == block:
        worker.hand = record.newer
    if record.older >= 0:
        run.blocks[record.older].newer = record.newer
    else:
        ends.oldest = record.newer
    if record.newer >= 0:
        run.blocks[record.newer].older = record.older
    else:
        ends.newest = record.older
    ends.bytes -= record.bytes
    record.queue = NOWHERE


@inlined
def record_read(run: ReplayState, block: int) -> None:
    record = run.blocks[block]
    record.frequency = min(MAX_READS if run.rules.policy == S3FIFO else 1, record.frequency + 1)


@inlined
def _movable_bytes(run: ReplayState, worker: int, task: int) -> int:
    """Bytes of the worker's stored blocks that the running task does not pin."""
    movable = run.rules.worker_bytes - run.workers[worker].free_bytes
    for place in range(run.tasks[task].inputs, run.tasks[task + 1].inputs):
        record = run.blocks[run.inputs[place].block]
        if record.worker == worker and (record.queue in (SMALL, MAIN)):
            movable -= record.bytes
    return movable


@inlined
def _sieve_victim(run: ReplayState, worker: int, task: int) -> int:
    oldest = run.queues[_queue(worker, SMALL)].oldest
    block = run.workers[worker].hand if run.workers[worker].hand >= 0 else oldest
    while run.blocks[block].pinned_by == task or run.blocks[block].frequency > 0:
        if run.blocks[block].pinned_by != task:
            run.blocks[block].frequency = 0
        block = run.blocks[block].newer if run.blocks[block].newer >= 0 else oldest
    run.workers[worker].hand = block
    return block


@inlined
def _oldest_unpinned(run: ReplayState, worker: int, queue: int, task: int) -> int:
    block = run.queues[_queue(worker, queue)].oldest
    while block >= 0 and run.blocks[block].pinned_by == task:
        block = run.blocks[block].newer
    return block


@inlined
def _remember(run: ReplayState, block: int) -> None:
    """Put an evicted block into the ghost queue."""
    ghost = run.queues[_queue(run.blocks[block].worker, GHOST)]
    if run.blocks[block].bytes > run.rules.ghost_bytes:
        return
    while ghost.bytes + run.blocks[block].bytes > run.rules.ghost_bytes:
        unqueue(run, ghost.oldest)
    _enqueue(run, block, GHOST)


@inlined
def _s3fifo_victim(run: ReplayState, worker: int, task: int) -> int:
    """The next victim, already removed from its queue and, if it was new, in the ghost queue."""
    main_share = run.rules.worker_bytes - run.rules.small_bytes
    run.workers[worker].has_evicted = 1
    while True:
        small, main = _oldest_unpinned(run, worker, SMALL, task), _oldest_unpinned(run, worker, MAIN, task)
        from_main = main >= 0 and (small < 0 or run.queues[_queue(worker, MAIN)].bytes > main_share)
        block = main if from_main else small
        record = run.blocks[block]
        unqueue(run, block)
        if from_main and record.frequency == 0:
            return block
        if not from_main and record.frequency < READS_TO_MAIN:
            _remember(run, block)
            return block
        record.frequency = record.frequency - 1 if from_main else 0
        _enqueue(run, block, MAIN)


@bare
def choose_queued(run: ReplayState, block: int, task: int) -> int:
    """Put the victims for `block` into `chosen`; returns their number, or -1 if it is refused."""
    worker, size_bytes = run.blocks[block].worker, run.blocks[block].bytes
    free_bytes, num_chosen = run.workers[worker].free_bytes, 0
    if free_bytes + _movable_bytes(run, worker, task) < size_bytes:
        return -1
    while free_bytes < size_bytes:
        if run.rules.policy == SIEVE:
            victim = _sieve_victim(run, worker, task)
            unqueue(run, victim)
        else:
            victim = _s3fifo_victim(run, worker, task)
        run.blocks[victim].frequency = 0
        free_bytes += run.blocks[victim].bytes
        run.scratch[num_chosen].chosen = victim
        num_chosen += 1
    return num_chosen
