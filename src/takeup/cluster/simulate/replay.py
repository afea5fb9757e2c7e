"""A whole workload under a scheduler: one pool at a time, since jobs never move between pools.

A scheduler is replayed through its rules, in compiled code that makes the same decisions as its `decide`. The quota is
queried every five minutes while spot jobs run, wait or are about to arrive; after the window there is no quota.
"""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from takeup.cluster.contract import Evidence
from takeup.cluster.model import Grade, Kind, Workload, fits_pool
from takeup.cluster.policies.rule_based import RuleBasedScheduler
from takeup.cluster.scheduling import layout
from takeup.cluster.scheduling.counters import enqueue_all
from takeup.cluster.scheduling.outcome import Outcome
from takeup.cluster.scheduling.rules import SchedulerRules
from takeup.cluster.scheduling.snapshot import pool_evidence, quota_arrays
from takeup.cluster.simulate import event_loop as events
from takeup.core.arrays import Bools, Floats, Ints
from takeup.errors import BadInput

NO_LIMIT = np.array([np.inf])
MOST_EVICTIONS = 100_000  # that are remembered at a time: those of a day


def replay(
    workload: Workload,
    scheduler: RuleBasedScheduler,
    from_s: float = 0.0,
    to_s: float | None = None,
    before: SchedulerRules | None = None,
) -> Outcome:
    """Replay everything; the window [from_s, to_s) is what metrics are about (default: until the last submission).

    With `before` pools live by other rules until the window begins, without any quota, and the scheduler takes over
    what runs and waits.
    """
    begun = ReplayPrefix(workload, from_s, to_s, before)
    return begun.finish(begun.lives, scheduler)


class ReplayPrefix:
    """A workload replayed up to its window, from where any number of schedulers can continue; see `replay`."""

    def __init__(
        self, workload: Workload, from_s: float = 0.0, to_s: float | None = None, before: SchedulerRules | None = None
    ) -> None:
        if workload.num_jobs and workload.job_submit_s[0] < 0:
            raise BadInput(f"the first job comes at {workload.job_submit_s[0]:g} s; count time from 0")
        last_s = float(workload.job_submit_s[-1]) if workload.num_jobs else 0.0
        end_s = float(np.ceil((last_s + 1) / 3600) * 3600) if to_s is None else to_s
        if not 0 <= from_s < end_s:
            raise BadInput(
                f"the window runs from {from_s:g} s to {end_s:g} s; it must not start below 0 or end before it"
            )
        self.workload, self.from_s, self.to_s, self.fits = workload, from_s, end_s, fits_pool(workload)
        self.lives = [_PoolReplay.of(workload, number, self.fits, end_s) for number in range(len(workload.pools))]
        if before is not None:
            for life in self.lives:
                life.run(from_s, before)

    def replay(self, scheduler: RuleBasedScheduler) -> Outcome:
        """The outcome of this scheduler on a deep copy, so that others start from the same state."""
        return self.finish(deepcopy(self.lives), scheduler)

    def finish(self, lives: list[_PoolReplay], scheduler: RuleBasedScheduler) -> Outcome:
        """The outcome of this scheduler on these pools, which are modified."""
        for life in lives:
            life.stand_in_line(scheduler.rules)
            life.live(scheduler)
        return _outcome(self.workload, scheduler.name, lives, self.fits, self.from_s, self.to_s)


@dataclass(slots=True)
class _PoolReplay:
    """The replay of one pool; `members` are its jobs that fit."""

    name: str
    organisations: tuple[str, ...]
    members: Ints
    fleet: layout.Fleet
    story: events.ReplayRecord
    agenda: events.EventQueue
    clock: Floats
    to_s: float
    spot_submit_s: Floats
    quota_gpus: Floats
    below_gpus: Floats
    high_nodes: Floats
    num_turns: int = 0
    asked: tuple[int, int] = (0, 0)

    @classmethod
    def of(cls, workload: Workload, number: int, fits: Bools, to_s: float) -> _PoolReplay:
        members = np.flatnonzero((workload.job_pool == number) & fits)
        sizes = workload.node_gpus[workload.node_pool == number]
        fields = ("kind", "organisation", "gpus", "workers", "submit_s", "guarantee_h", "checkpoint_s")
        jobs = layout.JobArrays(*(getattr(workload, f"job_{field}")[members] for field in fields))
        num_hours = int(np.ceil(to_s / 3600)) + 1
        story = events.empty_record(
            workload.job_duration_s[members], num_hours, len(workload.organisations), MOST_EVICTIONS
        )
        fleet = layout.empty_fleet(sizes, jobs)
        fleet.jobs["limit_s"] = workload.job_duration_s[members]
        return cls(
            name=workload.pools[number], organisations=workload.organisations, members=members,
            fleet=fleet, story=story, agenda=events.empty_queue(9 * len(members) + 64),
            clock=np.array([0.0, -1.0]), to_s=to_s,
            spot_submit_s=jobs.submit_s[jobs.kind == Kind.SPOT], quota_gpus=np.full(num_hours, np.nan),
            high_nodes=np.full(num_hours, np.nan), below_gpus=np.full(num_hours, np.nan),
        )  # fmt: skip

    def live(self, scheduler: RuleBasedScheduler) -> None:
        """Replay from this moment until the last job ends."""
        rules = scheduler.rules
        while rules.uses_quota and (next_s := self._next_question_s()) < self.to_s:
            if next_s > self.clock[0]:
                self.run(next_s, rules)  # no spot job runs, waits or comes until then
            quota = scheduler.quota_source.quota(self.name, self._evidence())
            hours, gpus = quota_arrays(quota)
            hour, below = int(self.clock[0] // 3600), quota.demand_below_gpus
            self.quota_gpus[hour], self.below_gpus[hour] = gpus[0], np.nan if below is None else below
            self.run(min(self.clock[0] + events.TICK_S, self.to_s), rules, hours, gpus)
        self.run(np.inf, rules)

    def stand_in_line(self, rules: SchedulerRules) -> None:
        """Rebuild the queues of waiting jobs in the order of these rules."""
        waiting = np.flatnonzero(self.fleet.jobs["waiting"])
        if len(waiting):
            self.fleet.totals[[layout.NUM_WAITING_HIGH, layout.NUM_WAITING_SPOT]] = 0
            enqueue_all(self.fleet, waiting, self.fleet.jobs["since_s"][waiting], rules)

    def run(self, until_s: float, rules: SchedulerRules, hours: Floats = NO_LIMIT, gpus: Floats = NO_LIMIT) -> None:
        """Run the event loop under these rules until then; `gpus[i]` may be promised for `hours[i]`."""
        self.story.ticks[events.CHANGED] = 1
        parts = (self.fleet, self.story, self.agenda, self.clock)
        self.num_turns += events.run_until(*parts, float(until_s), hours, gpus, rules)

    def _spot_gpus(self) -> float:
        return float(self.fleet.totals[layout.RUNNING_MILLI + Grade.GUARANTEED :][:2].sum()) / 1000.0

    def _next_question_s(self) -> float:
        now_s = float(self.clock[0])
        if self._spot_gpus() or self.fleet.totals[layout.NUM_WAITING_SPOT]:
            return now_s
        place = int(np.searchsorted(self.spot_submit_s, now_s))
        if place == len(self.spot_submit_s):
            return np.inf
        return max(now_s, float(self.spot_submit_s[place] // events.TICK_S * events.TICK_S))

    def _evidence(self) -> Evidence:
        hour = int(self.clock[0] // 3600)
        kept, broken = int(self.story.ticks[events.PROMISES_KEPT]), int(self.story.ticks[events.PROMISES_BROKEN])
        kept_before, broken_before = self.asked
        self.asked = kept, broken
        return pool_evidence(
            self.fleet, float(self.clock[0]), organisations=self.organisations, demand_now=self.story.demand[hour],
            hourly_demand=self.story.demand[:hour], num_kept=kept - kept_before, num_broken=broken - broken_before,
            high_nodes_now=self._count_high_nodes(hour), hourly_high_nodes=self.high_nodes[:hour],
        )  # fmt: skip

    def _count_high_nodes(self, hour: int) -> float:
        """Peak number of nodes with high-priority jobs in this hour so far; unseen hours are estimated from demand."""
        nodes = self.fleet.nodes
        before = hour - 1
        if hour and np.isnan(self.high_nodes[before]):
            unseen = np.flatnonzero(np.isnan(self.high_nodes[:hour]))
            filled = np.ceil(self.story.demand[unseen].sum(axis=1) / nodes["size"].mean())
            self.high_nodes[unseen] = np.minimum(filled, len(nodes))
        now = float(np.count_nonzero(nodes["high_milli"]))
        self.high_nodes[hour] = np.fmax(self.high_nodes[hour], now)
        return float(self.high_nodes[hour])


def _outcome(
    workload: Workload, name: str, lives: list[_PoolReplay], fits: Bools, from_s: float, to_s: float
) -> Outcome:
    def per_job(of: str, empty: float) -> Floats:
        values = np.full(workload.num_jobs, empty)
        for life in lives:
            values[life.members] = life.fleet.jobs[of] if of == "num_evictions" else getattr(life.story, of)
        return values

    def per_hour(table: str, column: int) -> npt.NDArray[np.float64]:
        return np.stack([getattr(life.story, table)[:, :, column] for life in lives])

    counts = {name: per_hour("counts", column).astype(np.int64) for name, column in _COUNTS.items()}
    return Outcome(
        scheduler=name, workload=workload.name, from_s=from_s, to_s=to_s, pools=workload.pools,
        capacity_gpus=np.array([float(life.fleet.nodes["size"].sum()) for life in lives]),
        kind=workload.job_kind, pool=workload.job_pool, fits=fits, submit_s=workload.job_submit_s,
        first_start_s=per_job("first_start_s", np.nan), end_s=per_job("end_s", np.nan),
        queued_s=per_job("queued_s", np.nan), num_evictions=per_job("num_evictions", 0).astype(np.int64),
        lost_gpu_s=per_job("lost_gpu_s", 0.0), allocated_gpu_s=per_hour("gpu_s", events.ALLOCATED),
        useful_gpu_s=per_hour("gpu_s", events.USEFUL), wasted_gpu_s=per_hour("gpu_s", events.LOST),
        demand_gpus=np.stack([life.story.demand.sum(axis=1) for life in lives]),
        quota_gpus=np.stack([life.quota_gpus for life in lives]), num_turns=sum(life.num_turns for life in lives),
        demand_below_gpus=np.stack([life.below_gpus for life in lives]),
        **counts,
    )  # fmt: skip


_COUNTS = {
    "num_starts": events.NUM_STARTS, "num_kept": events.NUM_KEPT, "num_broken": events.NUM_BROKEN,
    "num_promises_kept": events.NUM_PROMISES_KEPT, "num_promises_broken": events.NUM_PROMISES_BROKEN,
}  # fmt: skip
