"""A pool of a state as arrays, and arrays as a state again.

Jobs are numbered in the order of submission, so that equal states give equal decisions whatever order they list things
in. A state does not say which GPU of a node a worker shares; they are seated again in the order in which they started.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from operator import attrgetter
from typing import Any

import numpy as np
import numpy.typing as npt

from takeup.cluster.contract import Evidence
from takeup.cluster.model import Grade, Job, Quota, Run, State, Waiting
from takeup.cluster.scheduling import layout
from takeup.cluster.scheduling.counters import enqueue_all, nominate, resume_all
from takeup.cluster.scheduling.layout import Fleet
from takeup.cluster.scheduling.placement import update_calmness
from takeup.cluster.scheduling.rules import PACKED, SchedulerRules
from takeup.core.arrays import Floats, Ints
from takeup.errors import BadInput

TICK_S = 300.0  # how rarely a node evicts is looked at so often


@dataclass(frozen=True, slots=True)
class PoolSnapshot:
    """A pool as arrays, and the names behind the numbers."""

    fleet: Fleet
    jobs: tuple[Job, ...]
    nodes: tuple[str, ...]

    def nodes_of(self, number: int) -> tuple[str, ...]:
        """Where the workers of a job sit."""
        job = self.fleet.jobs[number]
        rows = self.fleet.workers["node"][job["first_worker"] : job["first_worker"] + job["workers"]]
        return tuple(self.nodes[node] for node in rows.tolist())


def pools_of(state: State) -> tuple[str, ...]:
    """The pools that have nodes, in the order in which they first appear."""
    return tuple(dict.fromkeys(node.pool for node in state.nodes))


def quota_arrays(quota: Quota) -> tuple[Floats, Floats]:
    """The hours of a quota in rising order, and the GPUs for each."""
    offers = sorted(quota.gpus_by_hours.items())
    return np.array([hours for hours, _ in offers], np.float64), np.array([gpus for _, gpus in offers], np.float64)


def from_state(state: State, pool: str, rules: SchedulerRules) -> PoolSnapshot:
    """One pool of a state, its queues in the order of the rules."""
    nodes = [node for node in state.nodes if node.pool == pool]
    runs = {run.job.id: run for run in state.runs if run.job.pool == pool}
    waits = {wait.job.id: wait for wait in state.waiting if wait.job.pool == pool and wait.job.id not in runs}
    known = [*(run.job for run in runs.values()), *(wait.job for wait in waits.values())]
    columns = _columns(known)
    order = _by_submission(known, columns.submit_s)
    jobs = tuple(map(known.__getitem__, order.tolist()))
    ordered = layout.JobArrays._make(each[order] for each in columns)
    fleet = layout.empty_fleet(_column(nodes, "num_gpus", np.int64), ordered, _column(nodes, "healthy", np.bool_))
    number_of = {node.name: number for number, node in enumerate(nodes)}
    numbers = np.empty(len(known), np.int64)
    numbers[order] = np.arange(len(known))
    fleet = _with_masks(fleet, jobs, number_of)
    _resume(fleet, list(runs.values()), numbers[: len(runs)], number_of, state.now_s)
    _queue(fleet, list(waits.values()), numbers[len(runs) :], rules)
    for name, number in zip(waits, numbers[len(runs) :].tolist(), strict=True):
        if seats := state.nominations.get(name):
            nominate(fleet, number, _seats(seats, number_of, waits[name].job))
    if rules.score == PACKED and state.evictions:
        _note_calm(fleet, state, number_of)
    return PoolSnapshot(fleet, jobs, tuple(number_of))


def _by_submission(jobs: Sequence[Job], submit_s: Floats) -> Ints:
    """The order of submission; jobs of the same moment by name."""
    names = [job.id for job in jobs]
    by_name = np.array(sorted(range(len(jobs)), key=names.__getitem__), np.int64)
    return np.asarray(by_name[np.argsort(submit_s[by_name], kind="stable")])


def pool_evidence(fleet: Fleet, now_s: float, **history: Any) -> Evidence:
    """The evidence about a pool as it is now; `history` has what it does not show by itself."""
    nodes, totals = fleet.nodes, fleet.totals
    waiting = fleet.spot_queue[: totals[layout.NUM_WAITING_SPOT]]
    return Evidence(
        now_s=now_s,
        capacity_gpus=float(totals[layout.ALL_GPUS]),
        idle_gpus=float(totals[layout.FREE_GPUS]),
        spot_gpus=float(totals[layout.RUNNING_MILLI + Grade.GUARANTEED :][:2].sum()) / 1000.0,
        guaranteed_gpus=float(totals[layout.PROMISED_MILLI]) / 1000.0,
        longest_wait_s=now_s - float(fleet.jobs["since_s"][waiting].min()) if len(waiting) else 0.0,
        idle_nodes=int(np.count_nonzero(nodes["free"] == nodes["size"])),
        num_nodes=len(nodes),
        **history,
    )


def _with_masks(fleet: Fleet, jobs: Sequence[Job], number_of: Mapping[str, int]) -> Fleet:
    """The fleet with a row of `masks` for each set of nodes that jobs are limited to."""
    limits_of = list(map(attrgetter("only_nodes"), jobs))
    if limits_of.count(None) == len(limits_of):
        return fleet
    limited = [(number, names) for number, names in enumerate(limits_of) if names is not None]
    limits = {names: row for row, names in enumerate(dict.fromkeys(names for _, names in limited))}
    masks = np.array([[name in names for name in number_of] for names in limits], np.bool_)
    for number, names in limited:
        fleet.jobs["mask"][number] = limits[names]
    return fleet._replace(masks=masks)


def _resume(fleet: Fleet, runs: list[Run], places: Ints, number_of: Mapping[str, int], now_s: float) -> None:
    if not runs:
        return
    places_of = list(map(attrgetter("nodes"), runs))
    lengths = np.fromiter(map(len, places_of), np.int64, len(runs))
    try:
        seats = np.fromiter(map(number_of.__getitem__, chain.from_iterable(places_of)), np.int64)
    except KeyError:
        seats = np.zeros(0, np.int64)
    if not len(seats) or (lengths != fleet.jobs["workers"][places]).any():
        for run in runs:
            _seats(run.nodes, number_of, run.job)  # names the one that is wrong
    start_s, saved_s = (_column(runs, name, np.float64) for name in ("start_s", "saved_s"))
    grades = _column(runs, "grade", np.int64)
    fleet.jobs["num_evictions"][places] = _column(runs, "num_evictions", np.int64)
    order = np.lexsort((places, start_s))
    seats = seats[np.argsort(np.repeat(np.argsort(order), lengths), kind="stable")]
    resume_all(fleet, places[order], seats, grades[order], start_s[order], saved_s[order], float(now_s))
    # A node may hold more than it has, for a moment or by mistake; what others have free still counts.
    fleet.totals[layout.FREE_GPUS] = np.maximum(fleet.nodes["free"], 0).sum()
    fleet.totals[layout.HIGH_GPUS] = np.minimum(fleet.nodes["high_gpus"], fleet.nodes["size"]).sum()


def _queue(fleet: Fleet, waits: list[Waiting], places: Ints, rules: SchedulerRules) -> None:
    since_s, num_evictions = _column(waits, "since_s", np.float64), _column(waits, "num_evictions", np.int64)
    fleet.jobs["num_evictions"][places] = num_evictions
    fleet.jobs["evicted_s"][places] = np.where(num_evictions > 0, since_s, -np.inf)
    enqueue_all(fleet, places, since_s, rules)


def _columns(jobs: Sequence[Job]) -> layout.JobArrays:
    kind, workers = (_column(jobs, name, np.int64) for name in ("kind", "num_workers"))
    gpus, submit_s, hours = (_column(jobs, name, np.float64) for name in ("gpus_per_worker", "submit_s", "guarantee_h"))
    never = np.full(len(jobs), np.inf)  # a state says when work was saved last; when it will be is no business of ours
    return layout.JobArrays(kind, np.zeros(len(jobs), np.int64), gpus, workers, submit_s, hours, never)


def _column(things: Sequence[object], name: str, kind: type[Any]) -> npt.NDArray[Any]:
    """An attribute of all things; a generator expression would take three times as long."""
    return np.fromiter(map(attrgetter(name), things), kind, len(things))


def _seats(names: Sequence[str], number_of: Mapping[str, int], job: Job) -> Ints:
    if len(names) != job.num_workers:
        raise BadInput(f"job {job.id} has {job.num_workers} workers on {len(names)} nodes; name one node for each")
    unknown = [name for name in names if name not in number_of]
    if unknown:
        raise BadInput(f"job {job.id} sits on {unknown[0]!r}, which is no node of pool {job.pool!r}; observe again")
    return np.array([number_of[name] for name in names], np.int64)


def _note_calm(fleet: Fleet, state: State, number_of: Mapping[str, int]) -> None:
    tick_s = np.floor(state.now_s / TICK_S) * TICK_S
    hour, day = np.zeros((2, len(number_of)), np.int64)
    for eviction in state.evictions:
        age_s = tick_s - eviction.when_s
        if 0 <= age_s < 86_400:
            for number in (number_of[name] for name in eviction.nodes if name in number_of):
                day[number] += 1
                hour[number] += age_s < 3600
    update_calmness(fleet, hour, day)
