"""Replays as tables and charts: schedulers compared, classes of jobs, pools; use, quotas and evictions over time."""

from collections.abc import Iterator, Sequence

import numpy as np

from takeup.cluster.model import Grade
from takeup.cluster.scheduling.outcome import DurationSummary, Metrics, Outcome
from takeup.core.arrays import Floats
from takeup.core.report import Cell, Column, Report, Series, Table

# Replays as tables: schedulers side by side, what each kind of job saw, and pool by pool ------------------------------
#
# Three eviction rates are in use and they differ, so all three are shown under names that say what they count against.

HOUR_S = 3600.0
SCHEDULER_COLUMNS = (
    Column("policy"),
    Column("evictions per period", "%", 2),
    Column("evictions per start", "%", 2),
    Column("evictions per job", "", 3),
    Column("promises kept", "%", 2),
    Column("spot time promised", "%", 2),
    Column("allocation", "%", 2),
    Column("useful GPU time", "%", 2),
    Column("lost", "GPU-h", 1),
)
CLASS_COLUMNS = (
    Column("policy"),
    Column("class"),
    Column("jobs"),
    *(Column(f"JQT {name}", "s", 0) for name in ("mean", "p50", "p95", "p99")),
    *(Column(f"JCT {name}", "s", 0) for name in ("mean", "p50", "p95", "p99")),
)
POOL_COLUMNS = (
    Column("policy"),
    Column("pool"),
    Column("GPUs", "", 0),
    Column("allocation", "%", 2),
    Column("useful GPU time", "%", 2),
    Column("evictions per period", "%", 2),
    Column("mean quota", "GPUs", 1),
    Column("high JQT mean", "s", 0),
    Column("spot JQT mean", "s", 0),
)
EVICTION_NOTE = (
    "per period: evictions / (evictions + periods of an hour that spot runs lasted or ended in); per start: / runs "
    "of spot jobs; per job: / spot jobs; a promise is kept if its run was not evicted within the hours promised; "
    "useful: work that is never done again, without overheads"
)


def schedulers_table(outcomes: Sequence[Outcome]) -> Table:
    """One row for each scheduler: evictions in their three forms, promises, allocation, useful and lost GPU time."""
    rows = tuple(_scheduler_row(outcome.scheduler, outcome.metrics()) for outcome in outcomes)
    return Table("Schedulers", SCHEDULER_COLUMNS, rows, EVICTION_NOTE)


def _scheduler_row(name: str, metrics: Metrics) -> tuple[Cell, ...]:
    return (
        name,
        100 * metrics.eviction_rate,
        100 * metrics.evictions_per_start,
        metrics.evictions_per_job,
        100 * metrics.promises_kept,
        100 * metrics.promised_share,
        100 * metrics.allocation_rate,
        100 * metrics.useful_rate,
        metrics.lost_gpu_s / HOUR_S,
    )


def classes_table(outcomes: Sequence[Outcome]) -> Table:
    """Two rows for each scheduler: how long high-priority and spot jobs waited, and took."""
    rows: list[tuple[Cell, ...]] = []
    for outcome in outcomes:
        metrics = outcome.metrics()
        in_window = (outcome.submit_s >= outcome.from_s) & (outcome.submit_s < outcome.to_s) & outcome.fits
        num_high, num_spot = (int((in_window & (outcome.kind == kind)).sum()) for kind in (0, 1))
        rows.append(_class_row(outcome.scheduler, "high", num_high, metrics.high_jqt_s, metrics.high_jct_s))
        rows.append(_class_row(outcome.scheduler, "spot", num_spot, metrics.spot_jqt_s, metrics.spot_jct_s))
    note = "JQT: time spent waiting, before the first run and after evictions; JCT: from submission to the end"
    return Table("Waiting and completion", CLASS_COLUMNS, tuple(rows), note)


def _class_row(name: str, kind: str, num_jobs: int, jqt_s: DurationSummary, jct_s: DurationSummary) -> tuple[Cell, ...]:
    spreads = ((each.mean, each.p50, each.p95, each.p99) for each in (jqt_s, jct_s))
    return (name, kind, num_jobs, *(value for values in spreads for value in values))


def pools_table(outcomes: Sequence[Outcome]) -> Table:
    """One row for each scheduler and pool."""
    rows = tuple(_pool_row(outcome, place, pool) for outcome in outcomes for place, pool in enumerate(outcome.pools))
    return Table("Pools", POOL_COLUMNS, rows)


def _pool_row(outcome: Outcome, place: int, pool: str) -> tuple[Cell, ...]:
    metrics = outcome.metrics(pool)
    first = int(outcome.from_s // HOUR_S)
    quota = outcome.quota_gpus[place, first : int(outcome.to_s // HOUR_S)]
    quota = quota[np.isfinite(quota)]
    return (
        outcome.scheduler,
        pool,
        float(outcome.capacity_gpus[place]),
        100 * metrics.allocation_rate,
        100 * metrics.useful_rate,
        100 * metrics.eviction_rate,
        float(quota.mean()) if len(quota) else None,
        metrics.high_jqt_s.mean,
        metrics.spot_jqt_s.mean,
    )


# Replays as charts: bars of schedulers, and over time what ran, what was promised and what was evicted ----------------

Row = dict[str, Cell]

HOURS_A_DAY = 24.0
MOST_POINTS = 250  # of one line; more cannot be told apart
CLASSES = {Grade.HIGH: "high priority", Grade.GUARANTEED: "spot, guaranteed", Grade.OPPORTUNISTIC: "spot, no promise"}


def eviction_bars(outcomes: Sequence[Outcome]) -> Series:
    """The three eviction rates of every scheduler."""
    rows: list[Row] = []
    for outcome in outcomes:
        found = outcome.metrics()
        for name, value in (
            ("per period", found.eviction_rate),
            ("per start", found.evictions_per_start),
            ("per job", found.evictions_per_job),
        ):
            rows.append({"policy": outcome.scheduler, "counted": name, "evictions": 100 * value})
    return Series("Spot evictions", "policy", "evictions", tuple(rows), "counted", y_unit="%", kind="bar")


def wait_bars(outcomes: Sequence[Outcome]) -> Series:
    """The mean time in the queue of every scheduler, for both kinds of jobs."""
    rows: list[Row] = []
    for outcome in outcomes:
        found = outcome.metrics()
        for kind, spread in (("high priority", found.high_jqt_s), ("spot", found.spot_jqt_s)):
            rows.append({"policy": outcome.scheduler, "class": kind, "mean JQT": spread.mean / 60})
    return Series("Time in the queue", "policy", "mean JQT", tuple(rows), "class", y_unit="min", kind="bar")


def usage_bars(outcomes: Sequence[Outcome]) -> Series:
    """Allocated and useful GPU time of every scheduler."""
    rows: list[Row] = []
    for outcome in outcomes:
        found = outcome.metrics()
        for name, share in (("allocated", found.allocation_rate), ("useful", found.useful_rate)):
            rows.append({"policy": outcome.scheduler, "GPU time": name, "share": 100 * share})
    return Series("GPU time", "policy", "share", tuple(rows), "GPU time", y_unit="%", kind="bar")


def allocation_series(outcomes: Sequence[Outcome]) -> Series:
    """GPUs in use over time by class, all pools together."""
    rows: list[Row] = []
    for outcome in outcomes:
        for grade, name in CLASSES.items():
            gpus = _window(outcome, outcome.allocated_gpu_s[:, :, grade].sum(axis=0) / HOUR_S)
            rows += [{"policy": outcome.scheduler, "class": name, **point} for point in _points(outcome, gpus, "GPUs")]
    return Series("GPUs in use", "day", "GPUs", tuple(rows), "class", _facet(outcomes), kind="step")


def quota_series(outcome: Outcome) -> Series:
    """Demand of high-priority jobs and its forecast bound, what there is, and what could be promised, by pool."""
    rows: list[Row] = []
    for place, pool in enumerate(outcome.pools):
        capacity = np.full(outcome.demand_gpus.shape[1], outcome.capacity_gpus[place])
        for name, gpus in (
            ("capacity", capacity),
            ("high-priority demand", outcome.demand_gpus[place]),
            ("quota", outcome.quota_gpus[place]),
        ):
            points = _points(outcome, _window(outcome, gpus), "GPUs")
            rows += [{"pool": pool, "what": name, **point} for point in points]
        if outcome.demand_below_gpus is not None and np.isfinite(outcome.demand_below_gpus[place]).any():
            points = _points(outcome, _window(outcome, outcome.demand_below_gpus[place]), "GPUs")
            rows += [{"pool": pool, "what": "demand stays below", **point} for point in points if point["GPUs"]]
    facet = "pool" if len(outcome.pools) > 1 else None
    return Series("Demand and quota", "day", "GPUs", tuple(rows), "what", facet, kind="step")


def eviction_series(outcomes: Sequence[Outcome]) -> Series:
    """Evictions in every hour, by scheduler."""
    rows: list[Row] = []
    for outcome in outcomes:
        counts = _window(outcome, outcome.num_broken.sum(axis=(0, 2)).astype(np.float64))
        rows += [{"policy": outcome.scheduler, **point} for point in _points(outcome, counts, "evictions an hour")]
    return Series("Evictions over time", "day", "evictions an hour", tuple(rows), "policy", kind="step")


def _facet(outcomes: Sequence[Outcome]) -> str | None:
    return "policy" if len(outcomes) > 1 else None


def _window(outcome: Outcome, hourly: Floats) -> Floats:
    return hourly[int(outcome.from_s // HOUR_S) : max(int(outcome.to_s // HOUR_S), 1)]


def _points(outcome: Outcome, hourly: Floats, name: str) -> Iterator[Row]:
    """Means of a few hours each, so that a line has a few hundred points; hours without a number count as 0."""
    first_h = int(outcome.from_s // HOUR_S)
    step = max(1, int(np.ceil(len(hourly) / MOST_POINTS)))
    for place in range(0, len(hourly), step):
        mean = float(np.nan_to_num(hourly[place : place + step], posinf=0.0).mean())
        yield {"day": (first_h + place) / HOURS_A_DAY, name: mean}


def report_of(outcome: Outcome) -> Report:
    """A replay: evictions, waiting, pools, and GPUs in use over time."""
    tables = (schedulers_table([outcome]), classes_table([outcome]), pools_table([outcome]))
    charts = (allocation_series([outcome]), quota_series(outcome), eviction_series([outcome]))
    return Report(f"{outcome.scheduler} on {outcome.workload}", "cluster", {}, 0, tables, charts)
