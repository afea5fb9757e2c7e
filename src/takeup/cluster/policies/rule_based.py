"""A scheduler made of rules: decides pool by pool, and remembers demand and kept promises between states."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from takeup.cluster.contract import Evidence, NoQuota, QuotaSource
from takeup.cluster.model import Decision, Evict, Grade, Hold, Kind, Quota, Run, SetQuota, Start, State
from takeup.cluster.scheduling.layout import (
    EVICTED,
    NUM_LOGGED,
    NUM_WAITING_HIGH,
    NUM_WAITING_SPOT,
    RUNNING_MILLI,
    STARTED,
)
from takeup.cluster.scheduling.rules import CHEAPEST, SchedulerRules
from takeup.cluster.scheduling.scheduling_pass import run_pass
from takeup.cluster.scheduling.snapshot import PoolSnapshot, from_state, pools_of, quota_arrays

if TYPE_CHECKING:
    from takeup.cluster.scheduling.gangs import PassCorrection


# What a scheduler remembers of a pool between observations: hourly demand, and how well promises were kept ------------

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
        evicted = {it.job_id: it.when_s for it in state.evictions if it.when_s > self.looked_s}
        for name, run in self.promised.items():
            end_s = run.start_s + HOUR_S * run.job.guarantee_h
            if end_s <= self.looked_s:
                continue  # counted when its hours were over
            if name in evicted and evicted[name] < end_s:
                self.num_broken += 1
            elif name not in runs or runs[name].start_s != run.start_s or state.now_s >= end_s:
                self.num_kept += 1
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


# A scheduler made of rules: it processes a state pool by pool, and decides what the rules say -------------------------
#
# The pass itself is compiled and shared with replays; here a state becomes arrays, and the log of the pass becomes
# decisions with their reasons. Between observations only the memory of demand, of promises kept and of the last quota
# is kept.

QUOTA_PERIOD_S = 300.0


@dataclass(slots=True)
class RuleBasedScheduler:
    """`rules` by `name`, with a source that says how much may be promised to spot jobs.

    `is_exact` lets a solver look for better victims wherever a gang evicts jobs; a replay never does.
    """

    name: str
    rules: SchedulerRules
    quota_source: QuotaSource = field(default_factory=NoQuota)
    is_exact: bool = False
    _memories: dict[str, PoolHistory] = field(default_factory=dict, init=False)
    _quotas: dict[str, Quota] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        kinds = (type(value) for value in SchedulerRules())
        # One type for every field, or the pass would be compiled again for a 0 that should have been a 0.0.
        self.rules = SchedulerRules._make(kind(value) for kind, value in zip(kinds, self.rules, strict=True))

    def decide(self, state: State) -> Sequence[Decision]:
        """Quotas that are due, then for each pool the starts, the evictions, and why the other jobs wait."""
        return [decision for pool in pools_of(state) for decision in self._decide(state, pool)]

    def _decide(self, state: State, pool: str) -> Iterator[Decision]:
        quota = Quota(pool, {np.inf: np.inf})
        if self.rules.uses_quota:
            quota, is_new = self._quota(state, pool)
            if is_new:
                yield SetQuota(quota, "what the forecast leaves free, corrected by how well promises were kept")
        while True:
            snapshot = from_state(state, pool, self.rules)
            run_pass(snapshot.fleet, float(state.now_s), *quota_arrays(quota), self.rules)
            decisions = list(_logged(snapshot))
            better = self._better(state, decisions)
            if better is None:
                break
            yield from better.decisions
            state = better.state
        yield from decisions
        yield from _held(snapshot, state.now_s, quota, self.rules)

    def _better(self, state: State, decisions: Sequence[Decision]) -> PassCorrection | None:
        if not self.is_exact or self.rules.victims != CHEAPEST:
            return None
        from takeup.cluster.scheduling.gangs import corrected_pass  # a solver is slow to load, and replays need none

        return corrected_pass(state, decisions, self.rules)

    def _quota(self, state: State, pool: str) -> tuple[Quota, bool]:
        """The quota in force, and whether it has just been computed."""
        memory = self._memories.setdefault(pool, PoolHistory(state.now_s))
        memory.look(state, pool)
        known = state.quotas.get(pool, self._quotas.get(pool))
        if known is not None and state.now_s - memory.asked_s < QUOTA_PERIOD_S:
            return known, False
        self._quotas[pool] = self.quota_source.quota(pool, memory.evidence(state, pool))
        return self._quotas[pool], True


def _logged(snapshot: PoolSnapshot) -> Iterator[Decision]:
    names = [job.id for job in snapshot.jobs]
    for line in snapshot.fleet.log[: snapshot.fleet.totals[NUM_LOGGED]]:
        job, other = int(line["job"]), int(line["other"])
        if line["what"] == STARTED:
            yield Start(names[job], snapshot.nodes_of(job), Grade(line["grade"]), _start_reason(line["grade"], other))
            continue
        lost = float(line["lost_gpu_s"])
        if other < 0:
            yield Evict(names[job], "", lost, "its lease is over")
            continue
        notice_s = 0.0 if line["what"] == EVICTED else float(line["ran_s"])
        reason = f"{names[other]} needs the room, and losing {lost:.0f} GPU-seconds is the cheapest way"
        yield Evict(names[job], names[other], lost, reason, notice_s)


def _start_reason(grade: int, num_evicted: int) -> str:
    if grade == Grade.HIGH:
        return f"high priority, room made by {num_evicted} evictions" if num_evicted else "high priority, idle GPUs fit"
    return "inside the quota" if grade == Grade.GUARANTEED else "idle GPUs, without a promise"


def _held(snapshot: PoolSnapshot, now_s: float, quota: Quota, rules: SchedulerRules) -> Iterator[Hold]:
    fleet = snapshot.fleet
    held = fleet.totals[RUNNING_MILLI + Grade.GUARANTEED] / 1000
    waiting = [
        *fleet.high_queue[: fleet.totals[NUM_WAITING_HIGH]].tolist(),
        *fleet.spot_queue[: fleet.totals[NUM_WAITING_SPOT]].tolist(),
    ]
    most = max(quota.gpus_by_hours.values(), default=0.0)
    for number in waiting:
        job = snapshot.jobs[number]
        reason = f"no room for {job.num_workers} x {job.gpus_per_worker:g} GPUs, or others go first"
        if fleet.jobs[number]["nominated"] >= 0:
            reason = "GPUs are kept for it until its victims have left"
        elif job.kind == Kind.HIGH and rules.wait_price < np.inf:
            reason += f"; at {rules.wait_price:g} GPU-hours for an hour of waiting no eviction pays yet"
        elif job.kind == Kind.SPOT and rules.uses_quota and held + job.num_gpus > most:
            reason = f"quota of {most:g} GPUs, {held:g} in use; {reason}"
        yield Hold(job.id, reason)
