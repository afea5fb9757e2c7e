"""A pool of a state as arrays, and arrays as a state again.

Jobs are numbered in the order of submission, so that equal states give equal decisions whatever order they list things
in. A state does not say which GPU of a node a worker shares; they are seated again in the order in which they started.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from takeup.cluster.fleet.fast.books import enqueue, nominate, resume
from takeup.cluster.fleet.fast.place import calm_down
from takeup.cluster.fleet.layout import NUM_RUNNING, NUM_WAITING_HIGH, NUM_WAITING_SPOT, Fleet, Jobs, empty_fleet
from takeup.cluster.fleet.rules import GATHERED, PACKED, Rules
from takeup.cluster.model import Eviction, Grade, Job, Node, Quota, Run, State, Waiting
from takeup.errors import BadInput

__all__ = ["Snapshot", "from_state", "pools_of", "quota_arrays", "to_state"]

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

TICK_S = 300.0  # how rarely a node evicts is looked at so often


@dataclass(frozen=True, slots=True)
class Snapshot:
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


def from_state(state: State, pool: str, rules: Rules) -> Snapshot:
    """One pool of a state, its queues in the order of the rules."""
    nodes = [node for node in state.nodes if node.pool == pool]
    runs = {run.job.id: run for run in state.runs if run.job.pool == pool}
    waits = {wait.job.id: wait for wait in state.waiting if wait.job.pool == pool and wait.job.id not in runs}
    known = [run.job for run in runs.values()] + [wait.job for wait in waits.values()]
    jobs = sorted(known, key=lambda job: (job.submit_s, job.id))
    fleet = empty_fleet([node.num_gpus for node in nodes], _columns(jobs), [node.healthy for node in nodes])
    number_of = {node.name: number for number, node in enumerate(nodes)}
    numbers = {job.id: number for number, job in enumerate(jobs)}
    for run in sorted(runs.values(), key=lambda run: (run.start_s, run.job.submit_s, run.job.id)):
        saved_s = run.saved_s if run.saved_s > run.start_s else np.inf
        seats = _numbers(run.nodes, number_of, run.job)
        resume(fleet, numbers[run.job.id], seats, int(run.grade), float(run.start_s), float(saved_s))
        fleet.jobs["num_evictions"][numbers[run.job.id]] = run.num_evictions
    for name, wait in waits.items():
        fleet.jobs["num_evictions"][numbers[name]] = wait.num_evictions
        fleet.jobs["evicted_s"][numbers[name]] = wait.since_s if wait.num_evictions else -np.inf
        enqueue(fleet, numbers[name], float(wait.since_s), rules)
        if state.nominations.get(name):
            nominate(fleet, numbers[name], _numbers(state.nominations[name], number_of, wait.job))
    if rules.score in (PACKED, GATHERED) and state.evictions:
        _note_calm(fleet, state, number_of)
    return Snapshot(fleet, tuple(jobs), tuple(node.name for node in nodes))


def _columns(jobs: Sequence[Job]) -> Jobs:
    floats = [
        np.array([getattr(job, name) for job in jobs], np.float64)
        for name in ("gpus_per_worker", "submit_s", "guarantee_h")
    ]
    kind = np.array([job.kind for job in jobs], np.int64)
    workers = np.array([job.num_workers for job in jobs], np.int64)
    never = np.full(len(jobs), np.inf)  # a state says when work was saved last; when it will be is no business of ours
    return Jobs(kind, np.zeros(len(jobs), np.int64), floats[0], workers, floats[1], floats[2], never)


def _numbers(names: Sequence[str], number_of: Mapping[str, int], job: Job) -> Ints:
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
    calm_down(fleet, hour, day)


def to_state(snapshot: Snapshot, now_s: float, evictions: tuple[Eviction, ...] = ()) -> State:
    """A pool as a state: what runs, what waits, and for whom GPUs are kept."""
    fleet, jobs = snapshot.fleet, snapshot.jobs
    pool = jobs[0].pool if jobs else ""
    nodes = tuple(
        Node(name, pool, int(it["size"]), bool(it["healthy"]))
        for name, it in zip(snapshot.nodes, fleet.nodes, strict=True)
    )
    runs = tuple(_run(snapshot, number, now_s) for number in fleet.running[: fleet.totals[NUM_RUNNING]].tolist())
    waiting = [
        *fleet.high_queue[: fleet.totals[NUM_WAITING_HIGH]].tolist(),
        *fleet.spot_queue[: fleet.totals[NUM_WAITING_SPOT]].tolist(),
    ]
    waits = tuple(
        Waiting(jobs[number], float(fleet.jobs[number]["since_s"]), int(fleet.jobs[number]["num_evictions"]))
        for number in waiting
    )
    kept = {jobs[n].id: snapshot.nodes_of(n) for n in waiting if fleet.jobs[n]["nominated"] >= 0}
    return State(now_s, nodes, runs, waits, evictions=evictions, nominations=kept)


def _run(snapshot: Snapshot, number: int, now_s: float) -> Run:
    it = snapshot.fleet.jobs[number]
    start_s, first_s, every_s = (float(it[name]) for name in ("start_s", "first_save_s", "checkpoint_s"))
    saved_s = start_s
    if now_s >= first_s:
        saved_s = first_s + (np.floor((now_s - first_s) / every_s) * every_s if np.isfinite(every_s) else 0.0)
    places = snapshot.nodes_of(number)
    return Run(snapshot.jobs[number], places, start_s, Grade(it["grade"]), float(saved_s), int(it["num_evictions"]))
