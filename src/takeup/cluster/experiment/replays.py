"""Schedulers on the same jobs in virtual time: one of them, several side by side, and what one earns over another."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from takeup.cluster.experiment.scenario import ClusterScenario, price_table, report_on
from takeup.cluster.experiment.workloads import DAY_S, load_workload, window_of
from takeup.cluster.fleet.evidence import Evidence, QuotaSource
from takeup.cluster.fleet.outcome import Outcome
from takeup.cluster.model import Grade, Kind, Quota, Workload
from takeup.cluster.policies import RuleBasedScheduler, find_policy
from takeup.cluster.policies.gfs.quota import Goal, SpotQuota
from takeup.cluster.policies.gfs.quota.allocator import forecast_by
from takeup.cluster.report import (
    GpuPrices,
    allocation_series,
    benefit_of,
    benefit_series,
    benefit_table,
    classes_table,
    days_table,
    eviction_bars,
    eviction_series,
    pools_table,
    quota_series,
    schedulers_table,
    usage_bars,
    wait_bars,
)
from takeup.cluster.simulate import replay
from takeup.core.progress import progress
from takeup.core.report import Report, Series
from takeup.core.sweep import sweep

WORTH_PROCESSES = 100_000  # jobs times policies; below that, starting processes takes longer than the replays


def quota_source(scenario: ClusterScenario) -> SpotQuota:
    """Promises for the probability, by the forecast model and with or without feedback, as the scenario says."""
    goal = Goal(scenario.probability)
    hours, levels = SpotQuota().hours, (*SpotQuota().probabilities, goal.probability)
    make = forecast_by(scenario.model, hours, tuple(sorted(set(levels))))
    make()  # an unknown model is said here, before anything is replayed
    return SpotQuota(goal=goal, make_forecast=make, has_feedback=scenario.feedback)


def scheduler_of(scenario: ClusterScenario, policy: str) -> RuleBasedScheduler:
    """A new scheduler with a separate quota source."""
    return find_policy(policy, quota_source(scenario))


def simulate(scenario: ClusterScenario, quiet: bool) -> Report:
    """One policy, or a few: how it went, hour by hour."""
    workload, notes = load_workload(scenario)
    from_s, to_s = window_of(scenario, workload)
    outcomes = []
    num_steps = len(scenario.policies) * len(workload.pools) * (int(to_s // DAY_S) + 1)
    with progress("cluster simulate", num_steps, quiet=quiet) as tick:
        for policy in scenario.policies:
            scheduler = scheduler_of(scenario, policy)
            days = DayProgress(scheduler.quota_source, tick)
            outcomes.append(replay(workload, _with_progress(scheduler, days), from_s, to_s))
            days.finish(num_steps // len(scenario.policies))
    charts = [allocation_series(outcomes), eviction_series(outcomes), *map(quota_series, outcomes)]
    return _replayed(scenario, workload, outcomes, notes, *charts)


def compare(scenario: ClusterScenario, quiet: bool) -> Report:
    """Several policies side by side: evictions in all three forms, waits, completion, allocation, useful time."""
    workload, notes = load_workload(scenario)
    outcomes = _outcomes(scenario, scenario.policies, workload, quiet)
    bars = (eviction_bars(outcomes), wait_bars(outcomes), usage_bars(outcomes))
    return _replayed(scenario, workload, outcomes, notes, *bars, allocation_series(outcomes), eviction_series(outcomes))


def benefit(scenario: ClusterScenario, quiet: bool) -> Report:
    """What a policy earns over another one on the same jobs, at the prices given, net of lost work."""
    workload, notes = load_workload(scenario)
    prices = GpuPrices(price_table(scenario.prices, workload.pools), price_table(scenario.high_prices, workload.pools))
    find_policy(scenario.against)  # what is wrong is said before anything is replayed
    for pool in workload.pools:
        prices.of(Grade.GUARANTEED, pool)
    ours, other = _outcomes(scenario, (scenario.policies[0], scenario.against), workload, quiet)
    found = benefit_of(ours, other, prices)
    tables = (benefit_table(found, scenario.seed), days_table(found), schedulers_table((ours, other)))
    title = f"Cluster: benefit of {ours.scheduler} over {other.scheduler}"
    return report_on(scenario, title, *tables, benefit_series(found), notes=_notes(workload, notes))


def _outcomes(scenario: ClusterScenario, policies: tuple[str, ...], workload: Workload, quiet: bool) -> list[Outcome]:
    points = [(scenario, policy) for policy in policies]
    num_processes = None if workload.num_jobs * len(points) > WORTH_PROCESSES else 1
    with progress(f"cluster {scenario.verb}", len(points), quiet=quiet) as tick:
        return sweep(_outcome, points, num_processes=num_processes, progress=lambda done, total: tick())


def _outcome(point: tuple[ClusterScenario, str]) -> Outcome:
    scenario, policy = point
    workload, _ = load_workload(scenario)
    return replay(workload, scheduler_of(scenario, policy), *window_of(scenario, workload))


def _replayed(
    scenario: ClusterScenario, workload: Workload, outcomes: list[Outcome], notes: tuple[str, ...], *charts: Series
) -> Report:
    tables = [schedulers_table(outcomes), classes_table(outcomes)]
    if len(workload.pools) > 1:
        tables.append(pools_table(outcomes))
    title = f"Cluster: {', '.join(scenario.policies)} on {workload.name}"
    return report_on(scenario, title, *tables, *charts, notes=_notes(workload, notes))


def _notes(workload: Workload, notes: tuple[str, ...]) -> tuple[str, ...]:
    num_spot = int((workload.job_kind == Kind.SPOT).sum())
    gpus = int(workload.node_gpus.sum())
    fleet = f"{workload.num_jobs} jobs, {num_spot} of them spot, on {workload.num_nodes} nodes with {gpus} GPUs"
    return (fleet, *notes)


# Progress of a long replay --------------------------------------------------------------------------------------------


@dataclass(slots=True)
class DayProgress:
    """A quota source that ticks a progress bar whenever a pool reaches another day."""

    source: QuotaSource
    tick: Callable[[], None]
    num_ticks: int = 0
    _reached: dict[str, int] = field(default_factory=dict)

    def quota(self, pool: str, evidence: Evidence) -> Quota:
        """Forward to the source."""
        day = int(evidence.now_s // DAY_S)
        self._tick(day - self._reached.get(pool, 0))
        self._reached[pool] = day
        return self.source.quota(pool, evidence)

    def finish(self, num_ticks: int) -> None:
        """Report the remaining days as done, including those without a quota query."""
        self._tick(num_ticks - self.num_ticks)

    def _tick(self, count: int) -> None:
        for _ in range(count):
            self.tick()
        self.num_ticks += max(0, count)


def _with_progress(scheduler: RuleBasedScheduler, days: DayProgress) -> RuleBasedScheduler:
    return RuleBasedScheduler(scheduler.name, scheduler.rules, days)
