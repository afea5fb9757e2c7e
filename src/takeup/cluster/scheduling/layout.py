"""One pool as arrays of records: nodes, jobs, workers, the two queues, and a log of what was decided.

GPUs are counted in thousandths where they can be shared (`milli`), and whole otherwise. A GPU is *shared* while some
worker that asked for less than a whole one sits on it; it then has a slot of its node in `share_room_milli`. Workers
on a node form a linked list. A job with a `mask` may use only the nodes of that row of `masks`; -1 stands for all.
`left_nodes` are those that evicted workers left since the log was begun. `limit_s` is the time limit of a job, in
replays its duration; only baselines that have such limits read it. `mark` of a job, `gain` and `taken` of a node and
`victims` are notes of a plan under way.

`quotes[row, node]` are the two prices of a node for a worker, NaN where they must be computed: row `n` for one with `n`
GPUs, and behind these rows the same for moves. `best` has the best node of each `BLOCK` of nodes, so that a search
looks at blocks: rows as in `quotes`, and behind them rows without victims for workers of high priority, and of spot
jobs.
"""

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from takeup.cluster.model import Kind
from takeup.core.arrays import Bools, Floats, Ints, record

Records = npt.NDArray[np.void]

NODE = record([
    (name, np.int64)
    for name in (
        "size", "healthy", "free", "reserved", "high_gpus", "high_milli", "spot_milli", "first", "gain", "taken",
    )
] + [("calm", np.float64)])  # fmt: skip
JOB = record([
    (name, np.int64)
    for name in (
        "kind", "organisation", "gpus", "milli", "workers", "first_worker", "running", "grade", "place",
        "num_evictions", "mark", "nominated", "leaving_for", "waiting", "mask", "promised",
    )
] + [
    (name, np.float64)
    for name in (
        "submit_s", "guarantee_h", "checkpoint_s", "since_s", "start_s", "first_save_s", "evicted_s", "retry_s",
        "limit_s",
    )
])  # fmt: skip
WORKER = record([(name, np.int64) for name in ("job", "node", "slot", "next", "previous")])
BEST = record([("node", np.int64), ("first", "f8"), ("second", "f8")])
LOG = record([(name, np.int64) for name in ("what", "job", "other", "grade")] + [("ran_s", "f8"), ("lost_gpu_s", "f8")])

STARTED, EVICTED, LEASE_OVER, NOTICED = range(4)  # what a line of the log says
NUM_WAITING_HIGH, NUM_WAITING_SPOT, NUM_RUNNING, NUM_LOGGED, NUM_NOMINATED, NUM_LEFT = range(6)  # places of `totals`
RUNNING_MILLI, FIRST_WAITING = 6, 11  # a place for each grade, and for each queue
ALL_GPUS, FREE_GPUS, HIGH_GPUS, SHARE_ROOM_MILLI = range(13, 17)  # of all nodes: shows at once what cannot fit
MOVED_BELOW = 17  # if above 0, only jobs with fewer GPUs per worker may be moved, no others
PROMISED_MILLI = 18  # of runs whose promised hours are not over
REFUSED_JOB = 19  # the last one whose evictions did not pay, -1 once anything has changed since
NUM_VICTIMS, HAS_QUOTES, NUM_TOTALS = range(20, 23)  # of a plan; whether `quotes` has been filled in this pass
BLOCK, STALE = 64, -2  # nodes of a block; its best node must be searched for


class JobArrays(NamedTuple):
    """What is known of jobs before anything is decided; entry i of every array belongs to job i, in submit order."""

    kind: Ints
    organisation: Ints
    gpus: Floats
    workers: Ints
    submit_s: Floats
    guarantee_h: Floats
    checkpoint_s: Floats


class Fleet(NamedTuple):
    """A pool. `running` and the queues hold job numbers; `totals` says how many, and the GPUs that run by grade."""

    nodes: Records
    jobs: Records
    workers: Records
    share_room_milli: Ints
    share_high: Ints
    high_queue: Ints
    spot_queue: Ints
    running: Ints
    totals: Ints
    log: Records
    left_nodes: Ints
    planned: Ints
    victims: Ints
    quotes: Floats
    best: Records
    scratch: Ints
    prices: Floats
    masks: Bools


def job_records(jobs: JobArrays) -> Records:
    """All jobs as records, none of them running or waiting."""
    records: Records = np.zeros(len(jobs.kind), JOB)
    for name in ("kind", "organisation", "workers", "submit_s", "guarantee_h", "checkpoint_s"):
        records[name] = getattr(jobs, name)
    records["milli"] = np.maximum(1, np.rint(jobs.gpus * 1000))
    records["gpus"] = np.where(records["milli"] >= 1000, records["milli"] // 1000, 0)
    records["first_worker"] = np.cumsum(jobs.workers) - jobs.workers
    records["place"] = records["nominated"] = records["leaving_for"] = records["mask"] = -1
    records["evicted_s"], records["first_save_s"], records["limit_s"] = -np.inf, np.inf, np.inf
    return records


def empty_fleet(node_gpus: npt.ArrayLike, jobs: JobArrays, healthy: npt.ArrayLike = True) -> Fleet:
    """A pool in which nothing runs and nothing waits."""
    records = job_records(jobs)
    nodes: Any = np.zeros(np.size(node_gpus), NODE)
    nodes["size"] = nodes["free"] = node_gpus
    nodes["healthy"], nodes["first"], nodes["calm"] = healthy, -1, 10_000.0
    num_workers, widest = int(records["workers"].sum()), int(np.max(node_gpus, initial=1))
    workers = np.full(num_workers, -1, np.int64).repeat(len(WORKER.names or ())).view(WORKER)
    workers["job"] = np.repeat(np.arange(len(records)), records["workers"])
    high_queue, spot_queue, running, victims = np.zeros((4, len(records) + 1), np.int64)
    room, high = np.full((len(nodes), widest), 1000), np.zeros((len(nodes), widest), np.int64)
    log = np.zeros(4 * len(records) + 16, LOG)
    left = np.zeros(num_workers + 1, np.int64)
    planned = np.zeros(int(np.max(records["workers"], initial=1)) + 1, np.int64)
    scratch, prices = np.zeros((3, _most_on_a_node(records, widest)), np.int64), np.zeros((2, 1 << MOST_BITS))
    best: Any = np.zeros((4 * (widest + 1), -(-len(nodes) // BLOCK)), BEST)
    best["node"] = STALE
    totals = np.zeros(NUM_TOTALS, np.int64)
    totals[REFUSED_JOB] = -1
    totals[ALL_GPUS] = totals[FREE_GPUS] = nodes["size"].sum()
    return Fleet(
        nodes, records, workers, room, high, high_queue, spot_queue, running, totals, log, left, planned, victims,
        np.empty((2 * (widest + 1), len(nodes), 2)), best, scratch, prices, np.ones((1, len(nodes)), np.bool_),
    )  # fmt: skip


MOST_BITS = 10  # up to this many victims on a node, all subsets are searched


def _most_on_a_node(records: Records, widest: int) -> int:
    """How many spot workers can sit on one node at most."""
    spot = records["milli"][records["kind"] == Kind.SPOT]
    return max(int(widest * 1000 // np.min(spot, initial=1000)), 64, widest + 2)
