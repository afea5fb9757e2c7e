"""Random states of a small pool, the same for the same seed."""

from __future__ import annotations

import numpy as np

from takeup.cluster.model import Eviction, Grade, Job, Kind, Node, Run, State, Waiting
from takeup.cluster.scheduling.layout import NUM_RUNNING, NUM_WAITING_HIGH, NUM_WAITING_SPOT
from takeup.cluster.scheduling.snapshot import PoolSnapshot

NOW_S = 100_000.0


def draw_state(seed: int, num_nodes: int = 5, num_jobs: int = 24, shared: bool = False, busy: float = 0.7) -> State:
    """Nodes of eight GPUs (now and then one that is doubted), jobs that run and jobs that wait."""
    chance = np.random.default_rng(seed)
    nodes = tuple(Node(f"n{i}", "a100", 8, bool(chance.random() > 0.05)) for i in range(num_nodes))
    free = {node.name: 8 for node in nodes}
    runs, waiting = [], []
    for number in range(num_jobs):
        job = _job(number, chance, shared)
        places = _places(job, free, chance)
        if places and chance.random() < busy:
            runs.append(_run(job, places, chance))
        else:
            num_evictions = int(chance.integers(3)) if job.kind == Kind.SPOT else 0
            waiting.append(Waiting(job, NOW_S - float(chance.integers(1, 9000)), num_evictions))
    return State(NOW_S, nodes, tuple(runs), tuple(waiting))


def _job(number: int, chance: np.random.Generator, shared: bool) -> Job:
    sizes = [0.25, 0.5, 1.0, 2.0, 4.0, 8.0] if shared else [1.0, 1.0, 2.0, 3.0, 4.0, 8.0]
    gpus = float(chance.choice(sizes))
    workers = int(chance.choice([1, 1, 1, 2, 3]))
    kind = Kind.SPOT if chance.random() < 0.65 else Kind.HIGH
    guarantee_h = float(chance.choice([0.0, 1.0, 1.0]))
    return Job(f"job{number:03d}", kind, "org", "a100", gpus, workers, float(number), guarantee_h)


def _places(job: Job, free: dict[str, int], chance: np.random.Generator) -> tuple[str, ...]:
    """Nodes with room for all workers, taken from `free`; none if there is too little."""
    asked = max(1, int(job.gpus_per_worker))
    found: list[str] = []
    for _ in range(job.num_workers):
        fitting = [name for name in free if free[name] >= asked]
        if not fitting:
            for name in found:
                free[name] += asked
            return ()
        name = str(chance.choice(fitting))
        free[name] -= asked
        found.append(name)
    return tuple(found)


def _run(job: Job, places: tuple[str, ...], chance: np.random.Generator) -> Run:
    start_s = NOW_S - float(chance.integers(100, 9000))
    saved_s = start_s + float(chance.integers(0, 2)) * float(chance.integers(1, 100))
    grade = Grade.HIGH if job.kind == Kind.HIGH else Grade(int(chance.integers(1, 3)))
    num_evictions = int(chance.integers(5)) if job.kind == Kind.SPOT else 0
    return Run(job, places, start_s, grade, saved_s, num_evictions)


def to_state(snapshot: PoolSnapshot, now_s: float, evictions: tuple[Eviction, ...] = ()) -> State:
    """A pool as a state: what runs, what waits, and for which jobs GPUs are reserved."""
    fleet, jobs = snapshot.fleet, snapshot.jobs
    pool = jobs[0].pool if jobs else ""
    nodes = tuple(
        Node(name, pool, int(it["size"]), bool(it["healthy"]))
        for name, it in zip(snapshot.nodes, fleet.nodes, strict=True)
    )
    runs = tuple(_as_run(snapshot, number, now_s) for number in fleet.running[: fleet.totals[NUM_RUNNING]].tolist())
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


def _as_run(snapshot: PoolSnapshot, number: int, now_s: float) -> Run:
    it = snapshot.fleet.jobs[number]
    start_s, first_s, every_s = (float(it[name]) for name in ("start_s", "first_save_s", "checkpoint_s"))
    saved_s = start_s
    if now_s >= first_s:
        saved_s = first_s + (np.floor((now_s - first_s) / every_s) * every_s if np.isfinite(every_s) else 0.0)
    places = snapshot.nodes_of(number)
    return Run(snapshot.jobs[number], places, start_s, Grade(it["grade"]), float(saved_s), int(it["num_evictions"]))
