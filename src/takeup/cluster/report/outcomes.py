"""Replays as tables: schedulers side by side, what each kind of job saw, and pool by pool.

Three eviction rates are in use and they differ, so all three are shown under names that say what they count against.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from takeup.cluster.fleet.outcome import DurationSummary, Metrics, Outcome
from takeup.cluster.model import Grade
from takeup.core.report import Cell, Column, Table

SECONDS_PER_HOUR = 3600.0
SCHEDULER_COLUMNS = (
    Column("policy"),
    Column("evictions per period", "%", 2),
    Column("evictions per start", "%", 2),
    Column("evictions per job", "", 3),
    Column("promises kept", "%", 2),
    Column("kept without promise", "%", 2),
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
    "of spot jobs; per job: / spot jobs"
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
        100 * metrics.guarantee_kept[Grade.GUARANTEED],
        100 * metrics.guarantee_kept[Grade.OPPORTUNISTIC],
        100 * metrics.allocation_rate,
        100 * metrics.useful_rate,
        metrics.lost_gpu_s / SECONDS_PER_HOUR,
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
    first = int(outcome.from_s // SECONDS_PER_HOUR)
    quota = outcome.quota_gpus[place, first : int(outcome.to_s // SECONDS_PER_HOUR)]
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
