"""Schedulers on the same jobs in virtual time: one, several compared, the benefit of one over another, and offers."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path

import numpy as np

from takeup.cluster.contract import Evidence, QuotaSource
from takeup.cluster.experiment.scenario import (
    DAY_S,
    ClusterScenario,
    hourly_demand,
    load_workload,
    price_table,
    report_on,
    select_jobs,
    window_of,
)
from takeup.cluster.forecast import make_forecaster
from takeup.cluster.forecast.forecaster import Scope
from takeup.cluster.model import Grade, Kind, Offer, Quota, Workload
from takeup.cluster.policies import find_policy
from takeup.cluster.policies.gfs import at_price
from takeup.cluster.policies.rule_based import RuleBasedScheduler
from takeup.cluster.quota.allocator import Goal, SpotQuota, forecast_by
from takeup.cluster.report.benefit import GpuPrices, benefit_of, benefit_series, benefit_table, days_table
from takeup.cluster.report.forecasts import (
    ForecastRun,
    OfferRequest,
    forecast_series,
    forecast_table,
    menu_table,
    next_hours_table,
    nodes_table,
    offers_table,
)
from takeup.cluster.report.outcomes import (
    allocation_series,
    classes_table,
    eviction_bars,
    eviction_series,
    pools_table,
    quota_series,
    schedulers_table,
    usage_bars,
    wait_bars,
)
from takeup.cluster.scheduling.outcome import Outcome
from takeup.cluster.simulate import replay
from takeup.core.arrays import Floats
from takeup.core.progress import progress
from takeup.core.report import Report, Series
from takeup.core.sweep import sweep
from takeup.core.trace import TraceColumn, column_names, read_table
from takeup.errors import BadInput, BadTrace

WORTH_PROCESSES = 100_000  # jobs times policies; below that, starting processes takes longer than the replays


def quota_source(scenario: ClusterScenario) -> SpotQuota:
    """Promises for the probability, by the forecast model and with or without feedback, as the scenario says."""
    goal = Goal(scenario.probability)
    hours, levels = SpotQuota().hours, (*SpotQuota().probabilities, goal.probability)
    make = forecast_by(scenario.model, hours, tuple(sorted(set(levels))))
    make()  # an unknown model is said here, before anything is replayed
    return SpotQuota(goal=goal, make_forecast=make, has_feedback=scenario.feedback)


def scheduler_of(scenario: ClusterScenario, policy: str) -> RuleBasedScheduler:
    """A new scheduler with a separate quota source, at the price of waiting that the scenario names."""
    scheduler = find_policy(policy, quota_source(scenario))
    if scenario.wait_price is None or scheduler.rules.wait_price == inf:
        return scheduler
    return replace(scheduler, rules=at_price(scheduler.rules, scenario.wait_price))


def simulate(scenario: ClusterScenario, quiet: bool) -> Report:
    """One policy, or a few: how it went, hour by hour."""
    workload, notes = load_workload(scenario)
    outcomes = _outcomes(scenario, scenario.policies, workload, quiet)
    return _replayed(scenario, workload, outcomes, notes, (), tuple(map(quota_series, outcomes)))


def compare(scenario: ClusterScenario, quiet: bool) -> Report:
    """Several policies side by side: evictions in all three forms, waits, completion, allocation, useful time."""
    workload, notes = load_workload(scenario)
    outcomes = _outcomes(scenario, scenario.policies, workload, quiet)
    bars = (eviction_bars(outcomes), wait_bars(outcomes), usage_bars(outcomes))
    return _replayed(scenario, workload, outcomes, notes, bars, ())


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
    scenario: ClusterScenario, workload: Workload, outcomes: list[Outcome], notes: tuple[str, ...],
    first: tuple[Series, ...], last: tuple[Series, ...],
) -> Report:  # fmt: skip
    tables = [schedulers_table(outcomes), classes_table(outcomes)]
    if len(workload.pools) > 1:
        tables.append(pools_table(outcomes))
    title = f"Cluster: {', '.join(scenario.policies)} on {workload.name}"
    shown = (*first, allocation_series(outcomes), eviction_series(outcomes), *last)
    return report_on(scenario, title, *tables, *shown, notes=_notes(workload, notes))


def _notes(workload: Workload, notes: tuple[str, ...]) -> tuple[str, ...]:
    num_spot = int((workload.job_kind == Kind.SPOT).sum())
    gpus = int(workload.node_gpus.sum())
    fleet = f"{workload.num_jobs} jobs, {num_spot} of them spot, on {workload.num_nodes} nodes with {gpus} GPUs"
    return (fleet, *notes)


TICK_S, HOUR_S = 300.0, 3600.0  # quotas are made every five minutes


def offer(scenario: ClusterScenario, quiet: bool) -> Report:
    """Replay until the moment, and ask."""
    workload, notes = load_workload(scenario)
    pool = _pool(scenario, workload)
    moment_s = _moment_s(scenario, workload)
    source = _OfferProbe(quota_source(scenario), scenario.num_gpus, scenario.gang_nodes, moment_s)
    scheduler = _promising(scenario.policies[0], source)
    with progress("cluster offer", 1, quiet=quiet) as tick:
        known = select_jobs(workload, workload.job_submit_s < moment_s, (pool,))
        replay(_with_question(known, moment_s), scheduler, 0.0, moment_s + HOUR_S)
        tick()
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
        quota = self.source.quota(pool, evidence)
        if self.asked is None and evidence.now_s >= self.moment_s:
            self.offers = self.source.offer(pool, evidence, self.num_gpus, self.num_nodes)
            self.asked = self._asked(pool, evidence)
        return quota

    def _asked(self, pool: str, evidence: Evidence) -> OfferRequest:
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
            left_gpus=menu.available(self.source.sold_of(evidence), evidence.now_s),
            free_nodes=nodes.free_gpus if nodes is not None else (),
        )


MEDIAN = 0.5
HOURS_A_DAY = 24
ROUNDING = 1e-6


def forecast(scenario: ClusterScenario, quiet: bool) -> Report:
    """What each model says about the next hours, at every hour of the last quarter, and what came."""
    demand, pools, capacity_gpus, notes = _demand(scenario)
    first = _first_origin(scenario, len(demand))
    runs = []
    with progress("cluster forecast", len(scenario.models) * len(demand), quiet=quiet) as tick:
        for model in scenario.models:
            runs.append(backtest(model, demand, pools, first, scenario.num_hours, scenario.probability, tick))
    tables = (forecast_table(runs), next_hours_table(runs[0], capacity_gpus))
    return report_on(scenario, "Cluster: forecasts of demand", *tables, *map(forecast_series, runs), notes=notes)


def backtest(
    model: str,
    demand: Floats,
    pools: tuple[str, ...],
    first_origin: int,
    num_hours: int,
    level: float,
    tick: Callable[[], None] = lambda: None,
) -> ForecastRun:
    """What a model says from every hour on, `demand` being `[hour, pool]`; no hour is known before it is over."""
    forecaster = make_forecaster(model, Scope(num_hours, tuple(sorted({MEDIAN, level}))))
    bounds, medians, highest = [], [], []
    for hour, values in enumerate(demand):
        forecaster.observe(hour, values)
        if first_origin <= hour < len(demand) - num_hours:
            said = forecaster.forecast()
            bounds.append(said.bound(num_hours, level))
            medians.append(said.bound(num_hours, MEDIAN))
            highest.append(demand[hour + 1 : hour + 1 + num_hours].max(axis=0))
        tick()
    last = forecaster.forecast()
    coming = np.stack([last.bound(hour, level) for hour in range(1, num_hours + 1)], axis=1)
    said_all = (np.array(bounds), np.array(medians), np.array(highest))
    return ForecastRun(model, pools, level, num_hours, first_origin, *said_all, coming)


def _demand(scenario: ClusterScenario) -> tuple[Floats, tuple[str, ...], Floats, tuple[str, ...]]:
    if scenario.demand is None:
        workload, notes = load_workload(scenario)
        sizes = np.bincount(workload.node_pool, workload.node_gpus, len(workload.pools))
        return hourly_demand(workload), workload.pools, np.asarray(sizes), notes
    if scenario.workload is not None or scenario.trace is not None:
        raise BadInput("give either a table of hourly demand, or a workload or trace, and not both")
    path = Path(scenario.demand)
    pools = tuple(column_names(path)[1:])
    if not pools:
        raise BadInput(f"{path} has one column; expected hours in the first and one column for each pool")
    table = read_table(path, [TraceColumn(pool, "float") for pool in pools])
    if len(table[pools[0]]) == 0:
        raise BadTrace(path, "has no rows; expected one for each hour")
    demand = _not_negative(path, pools, np.stack([table[pool] for pool in pools], axis=1).astype(np.float64))
    return demand, pools, demand.max(axis=0), ("capacities are not known; the highest demand stands for them",)


def _not_negative(path: Path, pools: tuple[str, ...], demand: Floats) -> Floats:
    """Sums and differences leave traces of -0 behind; what is really negative is a mistake."""
    wrong = np.argwhere(demand < -ROUNDING)
    if len(wrong):
        row, pool = wrong[0].tolist()
        raise BadTrace(path, f"demand is {demand[row, pool]:g}; give 0 or more", line=row + 2, column=pools[pool])
    return np.maximum(demand, 0.0)


def _first_origin(scenario: ClusterScenario, num_hours: int) -> int:
    first = num_hours - max(HOURS_A_DAY, num_hours // 4) if scenario.from_day is None else int(scenario.from_day * 24)
    if not 0 <= first < num_hours - scenario.num_hours:
        raise BadInput(
            f"of {num_hours} hours none is left to compare forecasts of {scenario.num_hours} hours with, from hour "
            f"{first} on; give more hours or an earlier from_day"
        )
    return first
