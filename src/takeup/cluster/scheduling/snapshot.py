"""A pool of a state as arrays, and arrays as a state again.

Jobs are numbered in the order of submission, so that equal states give equal decisions whatever order they list things
in. A state does not say which GPU of a node a worker shares; they are seated again in the order in which they started.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from takeup.cluster.model import Job, Quota, Run, State, Waiting
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
        return tuple(self.nodes[node] for node in rows)


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
    known = [run.job for run in runs.values()] + [wait.job for wait in waits.values()]
    jobs = sorted(known, key=lambda job: (job.submit_s, job.id))
    fleet = layout.empty_fleet([node.num_gpus for node in nodes], _columns(jobs), [node.healthy for node in nodes])
    number_of = {node.name: number for number, node in enumerate(nodes)}
    numbers = {job.id: number for number, job in enumerate(jobs)}
    fleet = _with_masks(fleet, jobs, number_of)
    _resume(fleet, list(runs.values()), numbers, number_of)
    _queue(fleet, list(waits.values()), numbers, rules)
    for name in (name for name in waits if state.nominations.get(name)):
        nominate(fleet, numbers[name], _seats(state.nominations[name], number_of, waits[name].job))
    if rules.score == PACKED and state.evictions:
        _note_calm(fleet, state, number_of)
    return PoolSnapshot(fleet, tuple(jobs), tuple(node.name for node in nodes))


def _with_masks(fleet: Fleet, jobs: Sequence[Job], number_of: Mapping[str, int]) -> Fleet:
    """The fleet with a row of `masks` for each set of nodes that jobs are limited to."""
    limits = list(dict.fromkeys(job.only_nodes for job in jobs if job.only_nodes is not None))
    if not limits:
        return fleet
    masks = np.array([[name in names for name in number_of] for names in limits], np.bool_)
    fleet.jobs["mask"] = [-1 if job.only_nodes is None else limits.index(job.only_nodes) for job in jobs]
    return fleet._replace(masks=masks)


def _resume(fleet: Fleet, runs: list[Run], numbers: Mapping[str, int], number_of: Mapping[str, int]) -> None:
    if not runs:
        return
    runs.sort(key=lambda run: (run.start_s, numbers[run.job.id]))
    places = np.array([numbers[run.job.id] for run in runs], np.int64)
    try:
        seats = np.array([number_of[name] for run in runs for name in run.nodes], np.int64)
    except KeyError:
        seats = np.zeros(0, np.int64)
    if len(seats) != fleet.jobs["workers"][places].sum() or any(len(r.nodes) != r.job.num_workers for r in runs):
        for run in runs:
            _seats(run.nodes, number_of, run.job)  # names the one that is wrong
    grades = np.array([run.grade for run in runs], np.int64)
    start_s, saved_s = (np.array([getattr(run, name) for run in runs], np.float64) for name in ("start_s", "saved_s"))
    fleet.jobs["num_evictions"][places] = [run.num_evictions for run in runs]
    resume_all(fleet, places, seats, grades, start_s, saved_s)
    # A node may hold more than it has, for a moment or by mistake; what others have free still counts.
    fleet.totals[layout.FREE_GPUS] = np.maximum(fleet.nodes["free"], 0).sum()
    fleet.totals[layout.HIGH_GPUS] = np.minimum(fleet.nodes["high_gpus"], fleet.nodes["size"]).sum()


def _queue(fleet: Fleet, waits: list[Waiting], numbers: Mapping[str, int], rules: SchedulerRules) -> None:
    places = np.array([numbers[wait.job.id] for wait in waits], np.int64)
    since_s = np.array([wait.since_s for wait in waits], np.float64)
    num_evictions = np.array([wait.num_evictions for wait in waits], np.int64)
    fleet.jobs["num_evictions"][places] = num_evictions
    fleet.jobs["evicted_s"][places] = np.where(num_evictions > 0, since_s, -np.inf)
    enqueue_all(fleet, places, since_s, rules)


def _columns(jobs: Sequence[Job]) -> layout.JobArrays:
    floats = [
        np.array([getattr(job, name) for job in jobs], np.float64)
        for name in ("gpus_per_worker", "submit_s", "guarantee_h")
    ]
    kind = np.array([job.kind for job in jobs], np.int64)
    workers = np.array([job.num_workers for job in jobs], np.int64)
    never = np.full(len(jobs), np.inf)  # a state says when work was saved last; when it will be is no business of ours
    return layout.JobArrays(kind, np.zeros(len(jobs), np.int64), floats[0], workers, floats[1], floats[2], never)


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
