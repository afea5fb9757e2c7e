"""`whatif`: a site's own records replayed under its own policy, the best stock one, and ours, with USD a month."""

import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np

from takeup.cluster.experiment.replays import quota_source, scheduler_of
from takeup.cluster.experiment.scenario import DAY_S, HOUR_S, ClusterScenario, price_table, report_on
from takeup.cluster.model import Kind, Workload
from takeup.cluster.policies import find_policy
from takeup.cluster.policies.gfs import at_price
from takeup.cluster.report.benefit import Benefit, GpuPrices, benefit_of
from takeup.cluster.report.outcomes import usage_bars
from takeup.cluster.scheduling.outcome import Outcome
from takeup.cluster.simulate import ReplayPrefix
from takeup.cluster.traces.records import SiteRecords, nodes_from, read_records
from takeup.cluster.traces.workload import TraceOptions
from takeup.core.progress import progress
from takeup.core.report import Cell, Column, Report, Table
from takeup.core.seeds import Streams
from takeup.errors import BadInput

NOTE = (
    "a month: thirty mean days over the site's own policy, net of work that was lost, with 95 % confidence if days are "
    "independent; 'gfs at N': an hour of waiting of a high-priority GPU costs N GPU-hours of spot work"
)
PEERS = ("fifo", "high_first", "kube", "slurm")  # Kueue and KAI at their defaults decide as slurm does here
FRONTIER = (0.0, 1.0, 3.0, 30.0, 100.0)  # prices of waiting besides the one in force
WARM_UP_SHARE, MOST_WARM_UP_DAYS = 1 / 7, 3
COLUMNS = (
    Column("policy"), Column("stands for"), Column("allocation", "%", 2), Column("useful GPU time", "%", 2),
    Column("high JQT", "s", 0), Column("high JQT p95", "s", 0), Column("spot JQT", "s", 0), Column("evictions"),
    Column("lost", "GPU-h", 0), Column("spot time promised", "%", 1), Column("a month", "USD", 0),
    Column("from", "USD", 0), Column("to", "USD", 0),
)  # fmt: skip


def whatif(scenario: ClusterScenario, quiet: bool) -> Report:
    """Each policy on the same jobs from one state; money is what is gained over the site's own policy."""
    site = _site(scenario)
    workload, own = site.loaded.workload, scenario.own_policy or site.own_policy
    ours = "gfs" if scenario.saves_s is None else "gfs_notice"
    outcomes = _replays(scenario, workload, tuple(dict.fromkeys((own, *PEERS, ours))), own, quiet)
    others = [name for name in outcomes if not name.startswith(ours)]
    best = max(others, key=lambda name: outcomes[name].metrics().useful_rate)
    prices, priced = _prices(scenario, workload.pools)
    stands_for = {best: "most useful of the others"} | {name: "takeup" for name in outcomes if name.startswith(ours)}
    stands_for[own] = "the site's own policy" + (f", {stands_for[own]}" if own in stands_for else "")
    rows = tuple(
        _row(stands_for.get(name, "stock"), outcome, outcomes[own], prices, scenario.seed)
        for name, outcome in outcomes.items()
    )
    title, notes = f"Cluster: what if {workload.name} had run {ours}", (*_notes(site, outcomes[own]), *priced)
    shown = [outcomes[name] for name in dict.fromkeys((own, best, ours))]
    table = Table("What would have been", COLUMNS, rows, NOTE)
    return report_on(scenario, title, table, usage_bars(shown), notes=notes)


def _replays(
    scenario: ClusterScenario, workload: Workload, names: tuple[str, ...], own: str, quiet: bool
) -> dict[str, Outcome]:
    """The outcome of each policy; until the window begins the site's own serves."""
    outcomes, begun = {}, ReplayPrefix(workload, *_window(workload), before=find_policy(own).rules)
    with progress("cluster whatif", len(names), quiet=quiet) as tick:
        for name in names:
            scheduler = scheduler_of(scenario, name)
            if scheduler.rules.notice_s > 0 and scenario.saves_s is not None:
                scheduler = replace(scheduler, rules=scheduler.rules._replace(notice_s=float(scenario.saves_s)))
            outcomes[name] = begun.replay(scheduler)
            tick()
        for price in FRONTIER if scenario.frontier else ():
            fresh = replace(scheduler, name=f"{name} at {price:g}", quota_source=quota_source(scenario))
            outcomes[fresh.name] = begun.replay(replace(fresh, rules=at_price(fresh.rules, price)))
    return outcomes


def _site(scenario: ClusterScenario) -> SiteRecords:
    if scenario.records is None:
        raise BadInput("give the records of the site with '--sacct FILE', or '-' for standard input")
    options = TraceOptions(
        spot_organisations=scenario.spot_organisations,
        spot_share=scenario.drawn_share or 0.0,
        streams=Streams(scenario.seed),
        guarantee_h=scenario.guarantee_h,
        checkpoint_s=scenario.checkpoint_s,
        time_unit_s=scenario.time_unit_s,
    )
    nodes = nodes_from(scenario.nodes) if scenario.nodes else None
    is_drawn = scenario.drawn_share is not None or bool(scenario.spot_organisations)
    mapped = column_map(scenario.column_map)
    if scenario.records != "-":
        return read_records(Path(scenario.records), mapped, nodes, options, is_drawn)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "records.csv"
        path.write_bytes(sys.stdin.buffer.read())
        return read_records(path, mapped, nodes, options, is_drawn)


def column_map(given: tuple[str, ...]) -> dict[str, str]:
    """Columns from texts such as `spot=best_effort=1,submit=submit_time`."""
    parts = [part.partition("=") for text in given for part in text.split(",")]
    wrong = [name for name, _, column in parts if not column]
    if wrong:
        raise BadInput(f"{wrong[0]!r} maps nothing; write NAME=COLUMN such as 'submit=submit_time'")
    return {name.strip(): column.strip() for name, _, column in parts}


def _window(workload: Workload) -> tuple[float, float]:
    """Whole days after a warm-up, until the last submission; a short record is used as it is."""
    last_s = float(workload.job_submit_s[-1])
    num_days = int(last_s // DAY_S)
    if num_days < 3:
        return 0.0, max(HOUR_S, np.ceil((last_s + 1) / HOUR_S) * HOUR_S)
    return DAY_S * min(MOST_WARM_UP_DAYS, max(1, int(num_days * WARM_UP_SHARE))), DAY_S * num_days


def _prices(scenario: ClusterScenario, pools: tuple[str, ...]) -> tuple[GpuPrices, tuple[str, ...]]:
    """The price of each pool: of the model whose name is in the name of the pool."""
    if not scenario.prices:
        return GpuPrices(dict.fromkeys(pools, 1.0)), (
            "no price was given: one USD is one GPU-hour; give '--price 1.8'",
        )
    found: dict[str, float] = {}
    for text in scenario.prices:
        model = text.rpartition("=")[0].lower()
        mine = tuple(pool for pool in pools if model in pool.lower())
        found |= dict.fromkeys(mine, next(iter(price_table((text.rpartition("=")[2],), ("all",)).values())))
    return GpuPrices(found), ()


def _row(kind: str, outcome: Outcome, own: Outcome, prices: GpuPrices, seed: int) -> tuple[Cell, ...]:
    metrics, gain = outcome.metrics(), _gain(outcome, own, prices)
    interval = None if gain is None else gain.interval_usd(seed)
    ends = (None, None) if interval is None else (interval.low, interval.high)
    return (
        outcome.scheduler, kind, 100 * metrics.allocation_rate, 100 * metrics.useful_rate, metrics.high_jqt_s.mean,
        metrics.high_jqt_s.p95, metrics.spot_jqt_s.mean, metrics.num_evictions, metrics.lost_gpu_s / HOUR_S,
        100 * metrics.promised_share, None if gain is None else gain.month_usd(),
        *ends,
    )  # fmt: skip


def _gain(outcome: Outcome, own: Outcome, prices: GpuPrices) -> Benefit | None:
    """None where there is no whole day to compare."""
    return benefit_of(outcome, own, prices) if own.to_s - own.from_s >= DAY_S else None


def _notes(site: SiteRecords, own: Outcome) -> tuple[str, ...]:
    workload, loaded = site.loaded.workload, site.loaded
    hours = slice(int(own.from_s // HOUR_S), int(own.to_s // HOUR_S))
    real = 100 * site.allocated_gpu_s[hours].sum() / (own.capacity_gpus.sum() * (own.to_s - own.from_s))
    num_spot = int((workload.job_kind == Kind.SPOT).sum())
    skipped = ", ".join(f"{count} because {reason}" for reason, count in loaded.skipped.items())
    window = f"compared from day {own.from_s / DAY_S:.1f} to {own.to_s / DAY_S:.1f}; until then {own.scheduler} serves"
    replayed = f"in the replay of {own.scheduler} {100 * own.metrics().allocation_rate:.2f} %"
    return (
        f"{workload.num_jobs} jobs, {num_spot} of them spot, on {int(workload.node_gpus.sum())} GPUs; {window}",
        *((f"allocation on record {real:.2f} %, {replayed}",) if site.has_starts else ()),
        *loaded.notes,
        *((f"left out: {skipped}",) if skipped else ()),
    )
