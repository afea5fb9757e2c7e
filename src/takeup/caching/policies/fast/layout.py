"""The arrays of a compiled replay: one record per block, task, input, worker and stage, and the rules of the run.

A block's users are the tasks that read it, in task order; `head` skips those that are closed for good, `announced`
ends at the last user announced so far. A producer that must run again is a *reopened* user: it is out of order, so
a block that has one is searched from the beginning.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from takeup.core.arrays import Ints

Records = npt.NDArray[Any]

NEVER, STORED, LOST = 0, 1, 2  # status of a block
UNKNOWN, OPEN, CLOSED = 0, 1, 2  # status of a consumer
NOWHERE, SMALL, MAIN, GHOST = 0, 1, 2, 3  # the queue of a block

FIFO, LRU, LFU, GDSF, LRC, LERC, MRD, NEXT, DAG, SIEVE, S3FIFO = range(11)
POLICY_CODES = {
    "fifo": FIFO,
    "lru": LRU,
    "lfu": LFU,
    "gdsf": GDSF,
    "lrc": LRC,
    "lerc": LERC,
    "mrd": MRD,
    "next": NEXT,
    "dag": DAG,
    "sieve": SIEVE,
    "s3fifo": S3FIFO,
    "min": NEXT,
}

ADDITIVE, PARALLEL, ALL_OR_NOTHING = range(3)
COST_MODELS = {"additive": ADDITIVE, "parallel": PARALLEL, "all-or-nothing": ALL_OR_NOTHING}


def _record(small: str = "", large: str = "", floats: str = "") -> np.dtype[np.void]:
    """A record of indices and counts, of bytes and clocks, of seconds, ranks and positions. Indices are kept small,
    because a replay spends most of its time waiting for memory."""
    kinds: tuple[tuple[str, type], ...] = ((floats, np.float64), (large, np.int64), (small, np.int32))
    return np.dtype([(name, kind) for names, kind in kinds for name in names.split()], align=True)


BLOCK = _record(
    "worker producer users head announced status on_disk rc erc reopened frequency heap_place obtained_by pinned_by "
    "queue older newer",
    "bytes last_used",
    "cost_s key1 key2 ready_s",
)
TASK = _record("job stage worker inputs outputs consumer missing stage_now is_again", "", "compute_s position")
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


class ReplayState(NamedTuple):
    """A workload, the state of its replay and the totals so far; `totals` has one record."""

    rules: ReplayRules
    blocks: Records
    tasks: Records
    inputs: Records
    outputs: Ints
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
