"""A scheduler made of rules: it processes a state pool by pool, and decides what the rules say.

The pass itself is compiled and shared with replays; here a state becomes arrays, and the log of the pass becomes
decisions with their reasons. Between observations only the memory of demand, of promises kept and of the last quota is
kept.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from takeup.cluster.fleet.evidence import NoQuota, QuotaSource
from takeup.cluster.fleet.fast.turn import run_pass
from takeup.cluster.fleet.layout import (
    EVICTED,
    NUM_LOGGED,
    NUM_WAITING_HIGH,
    NUM_WAITING_SPOT,
    RUNNING_MILLI,
    STARTED,
)
from takeup.cluster.fleet.rules import CHEAPEST, SchedulerRules
from takeup.cluster.fleet.snapshot import PoolSnapshot, from_state, pools_of, quota_arrays
from takeup.cluster.model import Decision, Evict, Grade, Hold, Kind, Quota, SetQuota, Start, State
from takeup.cluster.policies.memory import PoolHistory

if TYPE_CHECKING:
    from takeup.cluster.policies.gangs import PassCorrection


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
        from takeup.cluster.policies.gangs import corrected_pass  # a solver is slow to load, and replays need none

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
        elif job.kind == Kind.HIGH and now_s - fleet.jobs[number]["since_s"] < rules.patience_s:
            reason += f"; for {rules.patience_s / 3600:g} h it stops nobody whose GPUs would mostly stay idle"
        elif job.kind == Kind.SPOT and rules.uses_quota and held + job.num_gpus > most:
            reason = f"quota of {most:g} GPUs, {held:g} in use; {reason}"
        yield Hold(job.id, reason)
