"""The state of a compiled replay: its arrays, and the heap and queues on them that order the victims."""

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from takeup.caching.policies.s3fifo import MAX_READS, READS_TO_MAIN
from takeup.core.arrays import Ints
from takeup.core.compiled import bare, inlined

# The arrays of a compiled replay: one record per block, task, input, worker and stage, and the rules of the run -------
#
# A block's users are the tasks that read it, in task order; `head` skips those that are closed for good, `announced`
# ends at the last user announced so far. A producer that must run again is a *reopened* user: it is out of order, so
# a block that has one is searched from the beginning.

Records = npt.NDArray[Any]

NEVER, STORED, LOST = 0, 1, 2  # status of a block
UNKNOWN, OPEN, CLOSED = 0, 1, 2  # status of a consumer
NOWHERE, SMALL, MAIN, GHOST = 0, 1, 2, 3  # the queue of a block

FIFO, LRU, LFU, GDSF, LRC, LERC, MRD, NEXT, DAG, SIEVE, S3FIFO = range(11)
POLICY_NAMES = ("fifo", "lru", "lfu", "gdsf", "lrc", "lerc", "mrd", "next", "dag", "sieve", "s3fifo")
POLICY_CODES = {name: code for code, name in enumerate(POLICY_NAMES)} | {"min": NEXT, "spark": LRU}

ADDITIVE, PARALLEL, ALL_OR_NOTHING = range(3)
COST_MODELS = {"additive": ADDITIVE, "parallel": PARALLEL, "all-or-nothing": ALL_OR_NOTHING}


def _record(small: str = "", large: str = "", floats: str = "") -> np.dtype[np.void]:
    """A record of indices and counts, of bytes and clocks, of seconds, ranks and positions. Indices are kept small,
    because a replay spends most of its time waiting for memory."""
    kinds: tuple[tuple[str, type], ...] = ((floats, np.float64), (large, np.int64), (small, np.int32))
    return np.dtype([(name, kind) for names, kind in kinds for name in names.split()], align=True)


BLOCK = _record(
    "worker producer users head announced status on_disk rc erc reopened frequency heap_place obtained_by pinned_by "
    "queue older newer recomputes dataset",
    "bytes last_used",
    "cost_s key1 key2 ready_s",
)
TASK = _record("job stage worker inputs outputs ending consumer missing stage_now is_again", "", "compute_s position")
INPUT = _record("block user")
WORKER = _record("heap_start heap_size hand has_evicted", "free_bytes", "age free_s")
QUEUE = _record("oldest newest", "bytes")
NEAREST = _record("", "", "position term")
SCRATCH = _record("heap stack next_input restored chosen aside")
STAGE = _record("after", "", "end_s")
TOTALS = _record(
    "",
    "clock hits effective_hits evictions broadcasts refused recomputed read_bytes written_bytes",
    "inactive used inactive_now used_now task_time_s",
)


class ReplayRules(NamedTuple):
    """The constants of a run."""

    policy: int
    admission: bool
    recurring: bool
    recompute: bool
    cost_model: int
    disk_bytes_per_s: float
    worker_bytes: int
    small_bytes: int
    ghost_bytes: int
    stages_ascend: bool
    tracks_groups: bool
    spares_siblings: bool
    num_datasets: int


class ReplayState(NamedTuple):
    """A workload, the state of its replay and the totals so far; `totals` has one record."""

    rules: ReplayRules
    blocks: Records
    tasks: Records
    inputs: Records
    outputs: Ints
    ending: Ints
    dataset_bytes: Ints
    users: Ints
    workers: Records
    queues: Records
    stages: Records
    job_starts: Ints
    job_tasks: Ints
    job_known: npt.NDArray[np.bool_]
    scratch: Records
    nearest: Records
    totals: Records


# The stored blocks of one worker as an indexed binary heap: the next victim is on top ---------------------------------
#
# Blocks are ordered by (key1, key2, last use); each stores its index, so that it can be sifted when its keys change.


@inlined
def _before(run: ReplayState, a: int, b: int) -> bool:
    """Whether block `a` is evicted before block `b`."""
    if run.blocks[a].key1 != run.blocks[b].key1:
        return run.blocks[a].key1 < run.blocks[b].key1
    if run.blocks[a].key2 != run.blocks[b].key2:
        return run.blocks[a].key2 < run.blocks[b].key2
    return run.blocks[a].last_used < run.blocks[b].last_used


@inlined
def sift(run: ReplayState, worker: int, place: int) -> None:
    """Move the block at `place` up or down to where it belongs."""
    start, size = run.workers[worker].heap_start, run.workers[worker].heap_size
    block = run.scratch[start + place].heap
    while place > 0:
        above = run.scratch[start + (place - 1) // 2].heap
        if not _before(run, block, above):
            break
        run.scratch[start + place].heap = above
        run.blocks[above].heap_place = place
        place = (place - 1) // 2
    while 2 * place + 1 < size:
        child = 2 * place + 1
        if child + 1 < size and _before(run, run.scratch[start + child + 1].heap, run.scratch[start + child].heap):
            child += 1
        below = run.scratch[start + child].heap
        if not _before(run, below, block):
            break
        run.scratch[start + place].heap = below
        run.blocks[below].heap_place = place
        place = child
    run.scratch[start + place].heap = block
    run.blocks[block].heap_place = place


@inlined
def push(run: ReplayState, worker: int, block: int) -> None:
    size = run.workers[worker].heap_size
    run.scratch[run.workers[worker].heap_start + size].heap = block
    run.workers[worker].heap_size = size + 1
    sift(run, worker, size)


@inlined
def pop(run: ReplayState, worker: int) -> int:
    return remove(run, worker, 0)


@bare
def remove(run: ReplayState, worker: int, place: int) -> int:
    """Take the block at `place` off the heap."""
    start = run.workers[worker].heap_start
    block = run.scratch[start + place].heap
    run.workers[worker].heap_size -= 1
    size = run.workers[worker].heap_size
    run.blocks[block].heap_place = -1
    if place < size:
        run.scratch[start + place].heap = run.scratch[start + size].heap
        sift(run, worker, place)
    return block


@inlined
def top(run: ReplayState, worker: int) -> int:
    return run.scratch[run.workers[worker].heap_start].heap


@inlined
def has_lower_rank(run: ReplayState, a: int, b: int) -> bool:
    """Whether the rank of `a` is strictly lower, ignoring recency."""
    if run.blocks[a].key1 != run.blocks[b].key1:
        return run.blocks[a].key1 < run.blocks[b].key1
    return run.blocks[a].key2 < run.blocks[b].key2


# SIEVE and S3-FIFO on arrays: per worker a small, a main and a ghost queue of linked blocks. SIEVE uses the small one
#
# A block is in at most one queue; `frequency` counts its reads there. See `sieve.py` and `s3fifo.py` for the rules.


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
