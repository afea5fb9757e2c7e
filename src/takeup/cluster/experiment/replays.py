"""Schedulers on the same jobs in virtual time: one, several compared, the benefit of one over another, and offers."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np

from takeup.cluster.contract import Evidence, QuotaSource
from takeup.cluster.experiment.scenario import (
    DAY_S,
    ClusterScenario,
    load_workload,
    price_table,
    report_on,
    select_jobs,
    window_of,
)
from takeup.cluster.model import Grade, Kind, Offer, Quota, Workload
from takeup.cluster.policies import RuleBasedScheduler, find_policy
from takeup.cluster.quota.allocator import Goal, SpotQuota, forecast_by
from takeup.cluster.quota.menu import SpotPromise
from takeup.cluster.report import (
    GpuPrices,
    OfferRequest,
    allocation_series,
    benefit_of,
    benefit_series,
    benefit_table,
    classes_table,
    days_table,
    eviction_bars,
    eviction_series,
    menu_table,
    nodes_table,
    offers_table,
    pools_table,
    quota_series,
    schedulers_table,
    usage_bars,
    wait_bars,
)
from takeup.cluster.scheduling.outcome import Outcome
from takeup.cluster.simulate import replay
from takeup.core.progress import progress
from takeup.core.report import Report, Series
from takeup.core.sweep import sweep
from takeup.errors import BadInput

# Schedulers on the same jobs in virtual time: one of them, several side by side, and what one earns over another ------

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


# What could be promised to a job at one moment of a trace, after everything that was promised before ------------------

TICK_S, HOUR_S = 300.0, 3600.0  # quotas are made every five minutes


def offer(scenario: ClusterScenario, quiet: bool) -> Report:
    """Replay until the moment, and ask."""
    workload, notes = load_workload(scenario)
    pool = _pool(scenario, workload)
    moment_s = _moment_s(scenario, workload)
    source = _OfferProbe(quota_source(scenario), scenario.num_gpus, scenario.gang_nodes, moment_s)
    num_days = int(moment_s // DAY_S) + 1
    with progress("cluster offer", num_days, quiet=quiet) as tick:
        days = DayProgress(source, tick)
        scheduler = _promising(scenario.policies[0], days)
        known = select_jobs(workload, workload.job_submit_s < moment_s, (pool,))
        replay(_with_question(known, moment_s), scheduler, 0.0, moment_s + HOUR_S)
        days.finish(num_days)
    assert source.asked is not None
    notes = (f"day {moment_s / DAY_S:.3f} of {workload.name} under {scheduler.name}", *notes)
    tables = [offers_table(source.asked, source.offers), menu_table(source.asked)]
    if source.asked.num_nodes:
        tables.append(nodes_table(source.asked))
    return report_on(scenario, f"Cluster: what {pool} can promise", *tables, notes=notes)


def _promising(policy: str, source: QuotaSource) -> RuleBasedScheduler:
    scheduler = find_policy(policy, source)
    if not scheduler.rules.uses_quota:
        raise BadInput(f"{policy!r} makes no promises; ask a policy with a quota, such as 'gfs'")
    return scheduler


def _pool(scenario: ClusterScenario, workload: Workload) -> str:
    if len(workload.pools) > 1:
        raise BadInput(f"{workload.name} has the pools {', '.join(workload.pools)}; choose one with '--pool'")
    pool = workload.pools[0]
    size = int(workload.node_gpus.sum())
    if scenario.num_gpus > size or scenario.gang_nodes > workload.num_nodes:
        asked = f"{scenario.num_gpus} GPUs on {scenario.gang_nodes or 'any'} whole nodes"
        raise BadInput(f"{asked} are more than {pool} has: {workload.num_nodes} nodes with {size} GPUs; ask for less")
    return pool


def _moment_s(scenario: ClusterScenario, workload: Workload) -> float:
    last_s = float(workload.job_submit_s[-1])
    moment_s = last_s if scenario.at_day is None else scenario.at_day * DAY_S
    if moment_s > last_s + DAY_S:
        raise BadInput(f"day {moment_s / DAY_S:g} is after the trace, which ends on day {last_s / DAY_S:.2f}")
    return float(np.ceil(moment_s / TICK_S) * TICK_S)


def _with_question(workload: Workload, moment_s: float) -> Workload:
    """The workload with a small spot job at the end, so that a quota is asked for at this moment."""
    last = {
        "job_kind": int(Kind.SPOT), "job_pool": 0, "job_organisation": 0, "job_gpus": 1.0, "job_workers": 1,
        "job_submit_s": moment_s, "job_duration_s": 1.0, "job_guarantee_h": 1.0, "job_checkpoint_s": HOUR_S,
    }  # fmt: skip
    columns = {name: np.append(getattr(workload, name), value) for name, value in last.items()}
    return replace(workload, **columns)  # type: ignore[arg-type]


@dataclass(slots=True)
class _OfferProbe:
    """A source of quota that, at one moment, also asks what could be offered."""

    source: SpotQuota
    num_gpus: int
    num_nodes: int
    moment_s: float
    asked: OfferRequest | None = None
    offers: tuple[Offer, ...] = ()

    def quota(self, pool: str, evidence: Evidence) -> Quota:
        """What the source says."""
        quota = self.source.quota(pool, evidence)
        if self.asked is None and evidence.now_s >= self.moment_s:
            sold = self._sold(evidence)
            self.offers = self.source.offer(pool, evidence, self.num_gpus, self.num_nodes, sold)
            self.asked = self._asked(pool, evidence, sold)
        return quota

    def _sold(self, evidence: Evidence) -> tuple[SpotPromise, ...]:
        """What runs under a promise counts as promised in the strongest way: when each ends is not in the evidence."""
        if not evidence.guaranteed_gpus:
            return ()
        until_s = evidence.now_s + self.source.hours[-1] * HOUR_S
        return (SpotPromise(evidence.guaranteed_gpus, until_s, self.source.probabilities[-1]),)

    def _asked(self, pool: str, evidence: Evidence, sold: tuple[SpotPromise, ...]) -> OfferRequest:
        menu, nodes = self.source.menu(pool, evidence), self.source.node_menu(pool, evidence)
        return OfferRequest(
            pool=pool,
            num_gpus=self.num_gpus,
            num_nodes=self.num_nodes,
            capacity_gpus=evidence.capacity_gpus,
            idle_gpus=evidence.idle_gpus,
            idle_nodes=evidence.idle_nodes,
            promised_gpus=evidence.guaranteed_gpus,
            coefficient=self.source.coefficient(pool),
            num_hours_known=len(evidence.hourly_demand),
            hours=menu.hours,
            probabilities=menu.probabilities,
            free_gpus=menu.free_gpus,
            left_gpus=menu.available(sold, evidence.now_s),
            free_nodes=nodes.free_gpus if nodes is not None else (),
        )
