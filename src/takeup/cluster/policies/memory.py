"""What a scheduler remembers of a pool between observations: hourly demand, and how well promises were kept."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import numpy as np

from takeup.cluster.fleet.evidence import Evidence
from takeup.cluster.model import Grade, Kind, Run, State

HOUR_S = 3600.0
MOST_HOURS = 10_000  # more than a year


@dataclass(slots=True)
class PoolHistory:
    """Observed history of one pool; hours count from the first observation."""

    begun_s: float
    asked_s: float = -np.inf
    hours: list[Counter[str]] = field(default_factory=list)
    high_nodes: list[int] = field(default_factory=list)
    organisations: dict[str, None] = field(default_factory=dict)
    promised: dict[str, Run] = field(default_factory=dict)
    looked_s: float = -np.inf
    num_kept: int = 0
    num_broken: int = 0

    def look(self, state: State, pool: str) -> None:
        """Record the demand of this moment, and the outcome of promises since the last observation."""
        if state.now_s < self.looked_s:
            return  # a clock that goes backwards teaches nothing
        demand, num_high = demand_of(state, pool), num_high_nodes(state, pool)
        self.organisations.update(dict.fromkeys(demand))
        hour = int((state.now_s - self.begun_s) // HOUR_S)
        while len(self.hours) <= min(hour, len(self.hours) + MOST_HOURS):
            self.hours.append(Counter(demand))
            self.high_nodes.append(num_high)
        self.hours[-1] |= demand
        self.high_nodes[-1] = max(self.high_nodes[-1], num_high)
        self._count_promises(state, pool)
        self.looked_s = state.now_s

    def _count_promises(self, state: State, pool: str) -> None:
        runs = {run.job.id: run for run in state.runs if run.job.pool == pool and run.grade == Grade.GUARANTEED}
        evicted = {eviction.job_id for eviction in state.evictions if eviction.when_s > self.looked_s}
        for name, run in self.promised.items():
            if name in evicted:
                self.num_broken += 1
            elif name not in runs or runs[name].start_s != run.start_s:
                self.num_kept += 1  # it is done
            else:
                self.num_kept += _periods(run, state.now_s) - _periods(run, self.looked_s)
        self.promised = runs

    def evidence(self, state: State, pool: str) -> Evidence:
        """The evidence at this moment; resets the counters of kept and broken promises."""
        nodes = [node for node in state.nodes if node.pool == pool]
        runs = [run for run in state.runs if run.job.pool == pool]
        spot = [run for run in runs if run.grade != Grade.HIGH]
        waits = [it for it in state.waiting if it.job.pool == pool and it.job.kind == Kind.SPOT]
        names = tuple(self.organisations)
        rows = [[hour[name] for name in names] for hour in self.hours]
        table = np.array(rows, np.float64).reshape(len(rows), len(names))
        capacity = float(sum(node.num_gpus for node in nodes))
        busy = {name for run in runs for name in run.nodes}
        kept, broken = self.num_kept, self.num_broken
        self.asked_s, self.num_kept, self.num_broken = state.now_s, 0, 0
        return Evidence(
            now_s=state.now_s,
            capacity_gpus=capacity,
            idle_gpus=max(0.0, capacity - sum(run.job.num_gpus for run in runs)),
            spot_gpus=sum(run.job.num_gpus for run in spot),
            guaranteed_gpus=sum(run.job.num_gpus for run in spot if run.grade == Grade.GUARANTEED),
            organisations=names,
            demand_now=table[-1],
            hourly_demand=table[:-1],
            num_kept=kept,
            num_broken=broken,
            longest_wait_s=max((state.now_s - it.since_s for it in waits), default=0.0),
            idle_nodes=sum(node.name not in busy for node in nodes),
            num_nodes=len(nodes),
            high_nodes_now=float(self.high_nodes[-1]),
            hourly_high_nodes=np.array(self.high_nodes[:-1], np.float64),
        )


def demand_of(state: State, pool: str) -> Counter[str]:
    """GPUs that high-priority jobs of each organisation hold or wait for."""
    demand: Counter[str] = Counter()
    for job in [run.job for run in state.runs] + [wait.job for wait in state.waiting]:
        if job.pool == pool and job.kind == Kind.HIGH:
            demand[job.organisation] += job.num_gpus  # type: ignore[assignment]
    return demand


def num_high_nodes(state: State, pool: str) -> int:
    """Number of nodes with high-priority jobs: none of them is whole for other jobs."""
    runs = (run for run in state.runs if run.job.pool == pool and run.job.kind == Kind.HIGH)
    return len({name for run in runs for name in run.nodes})


def _periods(run: Run, now_s: float) -> int:
    return int(max(0.0, now_s - run.start_s) // HOUR_S)
