"""The state of a compiled replay: its arrays, and the heap that orders the victims."""

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from takeup.core.arrays import Floats, Ints
from takeup.core.compiled import bare, inlined

# The arrays of a compiled replay: one record per block, task, input, worker and stage, and the rules of the run -------
#
# A block's users are the tasks that read it, in task order; `head` skips those that are closed for good, `announced`
# ends at the last user announced so far. A producer that must run again is a *reopened* user: it is out of order, so
# a block that has one is searched from the beginning.

Records = npt.NDArray[Any]

NEVER, STORED, LOST = 0, 1, 2  # status of a block
UNKNOWN, OPEN, CLOSED = 0, 1, 2  # status of a consumer

LRU, LRC, LERC, MRD, NEXT, DAG = range(6)
POLICY_NAMES = ("lru", "lrc", "lerc", "mrd", "furthest_next_use", "dag")
POLICY_CODES = {name: code for code, name in enumerate(POLICY_NAMES)} | {"belady": NEXT, "spark": LRU}


def _record(small: str = "", large: str = "", floats: str = "") -> np.dtype[np.void]:
    """A record of indices and counts, of bytes and clocks, of seconds, ranks and positions. Indices are kept small,
    because a replay spends most of its time waiting for memory."""
    kinds: tuple[tuple[str, type], ...] = ((floats, np.float64), (large, np.int64), (small, np.int32))
    return np.dtype([(name, kind) for names, kind in kinds for name in names.split()], align=True)


BLOCK = _record(
    "worker producer users head announced status on_disk rc erc reopened heap_place obtained_by pinned_by recomputes "
    "dataset",
    "bytes last_used",
    "cost_s key1 key2 ready_s",
)
TASK = _record("job stage worker inputs outputs ending consumer missing stage_now is_again", "", "compute_s position")
INPUT = _record("block user")
WORKER = _record("heap_start heap_size", "free_bytes", "free_s")
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
    all_or_nothing: bool
    disk_bytes_per_s: float
    worker_bytes: int
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
    stages: Records
    job_starts: Ints
    job_tasks: Ints
    job_known: npt.NDArray[np.bool_]
    scratch: Records
    nearest: Floats
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
