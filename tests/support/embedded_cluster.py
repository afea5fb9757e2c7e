"""A cluster inside this process: jobs of a workload come, run and end in the time of a clock.

Everything is real but the jobs: a scheduler is asked through its `decide`, and a decision that cannot be carried out is
refused as by any other engine. How long a job lasts is known here only.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import numpy as np

from takeup.cluster.model import (
    Decision,
    Evict,
    Eviction,
    Grade,
    Job,
    Kind,
    Node,
    Quota,
    Run,
    SetQuota,
    Start,
    State,
    Waiting,
    Workload,
)
from takeup.core.clock import Clock
from takeup.errors import BadInput

DAY_S = 86_400.0
RESTART_S = 40.0  # what a job pays that was evicted


@dataclass(slots=True)
class EmbeddedEngine:
    """The jobs of a workload by its times, which are those of the clock."""

    workload: Workload
    clock: Clock
    skipped: Counter[str] = field(default_factory=Counter, init=False)
    num_finished: int = field(default=0, init=False)
    lost_gpu_s: float = field(default=0.0, init=False)
    _nodes: dict[str, Node] = field(init=False)
    _next: int = field(default=0, init=False)
    _runs: dict[str, Run] = field(default_factory=dict, init=False)
    _waiting: dict[str, Waiting] = field(default_factory=dict, init=False)
    _left_s: dict[str, float] = field(default_factory=dict, init=False)
    _quotas: dict[str, Quota] = field(default_factory=dict, init=False)
    _evictions: list[Eviction] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        sizes = zip(self.workload.node_pool.tolist(), self.workload.node_gpus.tolist(), strict=True)
        nodes = (Node(f"node-{place}", self.workload.pools[pool], size) for place, (pool, size) in enumerate(sizes))
        self._nodes = {node.name: node for node in nodes}

    def observe(self) -> State:
        """Advance to the current time, completing and enqueuing jobs, and return what runs and waits."""
        now_s = self.clock.now
        self._finish(now_s)
        self._arrive(now_s)
        self._evictions = [each for each in self._evictions if now_s - each.when_s < DAY_S]
        runs = tuple(replace(run, saved_s=_saved_s(run, now_s)) for run in self._runs.values())
        waiting = tuple(self._waiting.values())
        return State(now_s, tuple(self._nodes.values()), runs, waiting, dict(self._quotas), tuple(self._evictions))

    def apply(self, decision: Decision) -> None:
        """Carry one decision out; a TakeupError refuses it and leaves everything as it was."""
        match decision:
            case Start():
                self._start(decision)
            case Evict():
                self._evict(decision)
            case SetQuota():
                self._quotas[decision.quota.pool] = decision.quota

    def _arrive(self, now_s: float) -> None:
        while self._next < self.workload.num_jobs and self.workload.job_submit_s[self._next] <= now_s:
            job = _job(self.workload, self._next)
            self._waiting[job.id] = Waiting(job, job.submit_s)
            self._left_s[job.id] = float(self.workload.job_duration_s[self._next])
            self._next += 1

    def _finish(self, now_s: float) -> None:
        done = [name for name, run in self._runs.items() if run.start_s + self._left_s[name] <= now_s]
        for name in done:
            del self._runs[name], self._left_s[name]
        self.num_finished += len(done)

    def _start(self, decision: Start) -> None:
        if decision.job_id not in self._waiting:
            raise BadInput(f"job {decision.job_id} does not wait; observe again")
        waiting = self._waiting[decision.job_id]
        job = waiting.job
        if len(decision.nodes) != job.num_workers:
            raise BadInput(f"job {job.id} has {job.num_workers} workers, {len(decision.nodes)} nodes were named")
        self._require_room(job, decision.nodes)
        del self._waiting[job.id]
        now_s = self.clock.now
        self._runs[job.id] = Run(job, decision.nodes, now_s, decision.grade, now_s, waiting.num_evictions)

    def _require_room(self, job: Job, nodes: tuple[str, ...]) -> None:
        used = Counter(dict(self._used()))
        for name in nodes:
            node = self._nodes.get(name)
            if node is None or node.pool != job.pool:
                raise BadInput(f"{name!r} is no node of pool {job.pool!r}; observe again")
            used[name] += job.gpus_per_worker  # type: ignore[assignment]
            if used[name] > node.num_gpus + 1e-9:
                raise BadInput(f"{name} has no room for {job.gpus_per_worker:g} GPUs of job {job.id}; observe again")

    def _used(self) -> Iterator[tuple[str, float]]:
        total: dict[str, float] = {}
        for run in self._runs.values():
            for name in run.nodes:
                total[name] = total.get(name, 0.0) + run.job.gpus_per_worker
        yield from total.items()

    def _evict(self, decision: Evict) -> None:
        run = self._runs.get(decision.job_id)
        if run is None:
            raise BadInput(f"job {decision.job_id} does not run; observe again")
        if run.grade == Grade.HIGH:
            raise BadInput(f"job {decision.job_id} is of high priority; only spot jobs are evicted")
        now_s = self.clock.now
        saved_s = _saved_s(run, now_s)
        self._left_s[run.job.id] += RESTART_S - (saved_s - run.start_s)
        self.lost_gpu_s += (now_s - saved_s) * run.job.num_gpus
        del self._runs[run.job.id]
        self._waiting[run.job.id] = Waiting(run.job, now_s, run.num_evictions + 1)
        self._evictions.append(Eviction(run.job.id, now_s, run.nodes))


def _job(workload: Workload, number: int) -> Job:
    return Job(
        id=f"job-{number}",
        kind=Kind(int(workload.job_kind[number])),
        organisation=workload.organisations[int(workload.job_organisation[number])],
        pool=workload.pools[int(workload.job_pool[number])],
        gpus_per_worker=float(workload.job_gpus[number]),
        num_workers=int(workload.job_workers[number]),
        submit_s=float(workload.job_submit_s[number]),
        guarantee_h=float(workload.job_guarantee_h[number]),
        checkpoint_s=float(workload.job_checkpoint_s[number]),
    )


def _saved_s(run: Run, now_s: float) -> float:
    """The last checkpoint of a run, or its start."""
    if not np.isfinite(run.job.checkpoint_s):
        return run.start_s
    return run.start_s + float((now_s - run.start_s) // run.job.checkpoint_s) * run.job.checkpoint_s
