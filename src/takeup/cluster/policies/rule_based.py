"""A scheduler made of rules: decides pool by pool, and remembers demand and kept promises between states."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from takeup.cluster.contract import Evidence, NoQuota, QuotaSource
from takeup.cluster.model import Decision, Evict, Grade, Hold, Kind, Quota, SetQuota, Start, State
from takeup.cluster.scheduling.layout import (
    EVICTED,
    NUM_LOGGED,
    NUM_WAITING_HIGH,
    NUM_WAITING_SPOT,
    STARTED,
)
from takeup.cluster.scheduling.rules import SchedulerRules
from takeup.cluster.scheduling.scheduling_pass import quota_in_use_milli, run_pass
from takeup.cluster.scheduling.snapshot import PoolSnapshot, from_state, pool_evidence, pools_of, quota_arrays

# What a scheduler remembers of a pool between observations: hourly demand, and how well promises were kept ------------

HOUR_S = 3600.0
MOST_HOURS = 10_000  # more than a year


@dataclass(slots=True)
class PoolHistory:
    """Observed history of one pool; hours count from the first observation."""

    begun_s: float
    asked_s: float = -np.inf
    hours: list[Counter[str]] = field(default_factory=list)
    organisations: dict[str, None] = field(default_factory=dict)
    promised: dict[str, tuple[float, float]] = field(default_factory=dict)  # when runs began, and their promises end
    looked_s: float = -np.inf
    num_kept: int = 0
    num_broken: int = 0

    def look(self, state: State, snapshot: PoolSnapshot) -> None:
        """Record the demand of this moment, and the outcome of promises since the last observation."""
        if state.now_s < self.looked_s:
            return  # a clock that goes backwards teaches nothing
        demand = demand_of(snapshot)
        self.organisations.update(dict.fromkeys(demand))
        hour = int((state.now_s - self.begun_s) // HOUR_S)
        while len(self.hours) <= min(hour, len(self.hours) + MOST_HOURS):
            self.hours.append(Counter(demand))
        self.hours[-1] |= demand
        self._count_promises(state, snapshot)
        self.looked_s = state.now_s

    def _count_promises(self, state: State, snapshot: PoolSnapshot) -> None:
        jobs = snapshot.fleet.jobs
        ends_s = jobs["start_s"] + HOUR_S * jobs["guarantee_h"]
        is_live = (jobs["running"] == 1) & (jobs["grade"] == Grade.GUARANTEED) & (ends_s > state.now_s)
        rows = np.flatnonzero(is_live)
        starts_s, ends_s = jobs["start_s"][rows], ends_s[rows]
        names = [snapshot.jobs[row].id for row in rows.tolist()]
        runs = dict(zip(names, zip(starts_s.tolist(), ends_s.tolist(), strict=True), strict=True))
        evicted = {it.job_id: it.when_s for it in state.evictions if it.when_s > self.looked_s}
        for name, (start_s, end_s) in self.promised.items():
            if end_s <= self.looked_s:
                continue  # counted when its hours were over
            if name in evicted and evicted[name] < end_s:
                self.num_broken += 1
            elif name not in runs or runs[name][0] != start_s or state.now_s >= end_s:
                self.num_kept += 1
        self.promised = runs

    def evidence(self, state: State, snapshot: PoolSnapshot, coefficient: float) -> Evidence:
        """The evidence at this moment; resets the counters of kept and broken promises."""
        names = tuple(self.organisations)
        rows = [[hour[name] for name in names] for hour in self.hours]
        table = np.array(rows, np.float64).reshape(len(rows), len(names))
        kept, broken = self.num_kept, self.num_broken
        self.asked_s, self.num_kept, self.num_broken = state.now_s, 0, 0
        return pool_evidence(
            snapshot.fleet, state.now_s, organisations=names, demand_now=table[-1], hourly_demand=table[:-1],
            num_kept=kept, num_broken=broken, coefficient=coefficient,
        )  # fmt: skip


def demand_of(snapshot: PoolSnapshot) -> Counter[str]:
    """GPUs that high-priority jobs of each organisation hold or wait for."""
    jobs = snapshot.fleet.jobs
    rows = np.flatnonzero(jobs["kind"] == Kind.HIGH)
    names = [snapshot.jobs[row].organisation for row in rows.tolist()]
    places = {name: place for place, name in enumerate(dict.fromkeys(names))}
    gpus = (jobs["milli"] * jobs["workers"])[rows] / 1000.0
    totals = np.bincount(list(map(places.__getitem__, names)), gpus, len(places)) if names else rows
    return Counter(dict(zip(places, totals.tolist(), strict=True)))


# A scheduler made of rules: it processes a state pool by pool, and decides what the rules say -------------------------
#
# The pass itself is compiled and shared with replays; here a state becomes arrays, and the log of the pass becomes
# decisions with their reasons. Between observations only the memory of demand, of promises kept and of the last quota
# is kept.

QUOTA_PERIOD_S = 300.0


@dataclass(slots=True)
class RuleBasedScheduler:
    """`rules` by `name`, with a source that says how much may be promised to spot jobs."""

    name: str
    rules: SchedulerRules
    quota_source: QuotaSource = field(default_factory=NoQuota)
    _memories: dict[str, PoolHistory] = field(default_factory=dict, init=False)
    _quotas: dict[str, Quota] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        kinds = (type(value) for value in SchedulerRules())
        # One type for every field, or the pass would be compiled again for a 0 that should have been a 0.0.
        self.rules = SchedulerRules._make(kind(value) for kind, value in zip(kinds, self.rules, strict=True))

    def learn(self, pool: str, begun_s: float, hourly_gpus: Sequence[float]) -> None:
        """Take over the demand of past hours, instead of what was known of this pool."""
        hours = [Counter({"": gpus}) for gpus in hourly_gpus]
        self._memories[pool] = PoolHistory(begun_s, hours=hours, organisations={"": None})

    def decide(self, state: State) -> Sequence[Decision]:
        """Quotas that are due, then for each pool the starts, the evictions, and why the other jobs wait."""
        return [decision for pool in pools_of(state) for decision in self._decide(state, pool)]

    def _decide(self, state: State, pool: str) -> Iterator[Decision]:
        quota, snapshot = Quota(pool, {np.inf: np.inf}), from_state(state, pool, self.rules)
        if self.rules.uses_quota:
            quota, is_new = self._quota(state, pool, snapshot)
            if is_new:
                yield SetQuota(quota, "what the forecast leaves free, corrected by how well promises were kept")
        run_pass(snapshot.fleet, float(state.now_s), *quota_arrays(quota), self.rules)
        yield from _logged(snapshot)
        yield from _held(snapshot, state.now_s, quota, self.rules)

    def _quota(self, state: State, pool: str, snapshot: PoolSnapshot) -> tuple[Quota, bool]:
        """The quota in force, and whether it has just been computed."""
        memory = self._memories.setdefault(pool, PoolHistory(state.now_s))
        memory.look(state, snapshot)
        known = state.quotas.get(pool, self._quotas.get(pool))
        if known is not None and state.now_s - memory.asked_s < QUOTA_PERIOD_S:
            return known, False
        coefficient = 1.0 if known is None else known.coefficient
        self._quotas[pool] = self.quota_source.quota(pool, memory.evidence(state, snapshot, coefficient))
        return self._quotas[pool], True


def _logged(snapshot: PoolSnapshot) -> Iterator[Decision]:
    jobs = snapshot.jobs
    for what, job, other, grade, ran_s, lost in snapshot.fleet.log[: snapshot.fleet.totals[NUM_LOGGED]].tolist():
        if what == STARTED:
            yield Start(jobs[job].id, snapshot.nodes_of(job), Grade(grade), _start_reason(grade, other))
        elif other < 0:
            yield Evict(jobs[job].id, "", lost, "its lease is over")
        else:
            reason = f"{jobs[other].id} needs the room, and losing {lost:.0f} GPU-seconds is the cheapest way"
            yield Evict(jobs[job].id, jobs[other].id, lost, reason, 0.0 if what == EVICTED else ran_s)


def _start_reason(grade: int, num_evicted: int) -> str:
    if grade == Grade.HIGH:
        return f"high priority, room made by {num_evicted} evictions" if num_evicted else "high priority, idle GPUs fit"
    return "inside the quota" if grade == Grade.GUARANTEED else "idle GPUs, without a promise"


def _held(snapshot: PoolSnapshot, now_s: float, quota: Quota, rules: SchedulerRules) -> Iterator[Hold]:
    fleet = snapshot.fleet
    held, most = quota_in_use_milli(fleet, rules) / 1000, max(quota.gpus_by_hours.values(), default=0.0)
    high, spot = (fleet.totals[place] for place in (NUM_WAITING_HIGH, NUM_WAITING_SPOT))
    waiting = np.concatenate([fleet.high_queue[:high], fleet.spot_queue[:spot]])
    for number, nominated in zip(waiting.tolist(), fleet.jobs["nominated"][waiting].tolist(), strict=True):
        job = snapshot.jobs[number]
        reason = f"no room for {job.num_workers} x {job.gpus_per_worker:g} GPUs, or others go first"
        if nominated >= 0:
            reason = "GPUs are kept for it until its victims have left"
        elif job.kind == Kind.HIGH and rules.wait_price < np.inf:
            reason += f"; at {rules.wait_price:g} GPU-hours for an hour of waiting no eviction pays yet"
        elif job.kind == Kind.SPOT and rules.uses_quota and held + job.num_gpus > most:
            reason = f"quota of {most:g} GPUs, {held:g} in use; {reason}"
        yield Hold(job.id, reason)
