"""All schedulers on the calibrated pool of 2,296 GPUs at three spot loads, and GFS without each of its parts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import sqrt

import numpy as np

from takeup.cluster.model import Grade, Workload
from takeup.cluster.policies import find_policy
from takeup.cluster.quota.allocator import SpotQuota, forecast_by
from takeup.cluster.scheduling.outcome import Outcome
from takeup.cluster.simulate import replay
from takeup.cluster.traces import generate
from takeup.core.report import Check, Column, Table
from takeup.core.seeds import Streams

LOADS = {"low": "a100_2296_low", "medium": "a100_2296", "high": "a100_2296_high"}
NUM_DAYS, SPOT_DAYS, DAY_S = 62, 31, 86_400.0
EVALUATED = ("yarn_cs", "chronus", "lyra", "fgd")
PUBLISHED = tuple(f"{name}_published" for name in EVALUATED)
STOCK = ("kube", "kueue", "high_first", "kube+quota", "slurm+quota")
OURS = ("gfs", "gfs_notice", "gfs_promised", "gfs_published")
BROKEN_BAR = 0.1
REDUCTION_BARS = {"eviction": 0.33, "spot_jqt_s": 0.44, "high_jqt_s": 0.60}


@dataclass(frozen=True, slots=True)
class Row:
    """One replay in numbers."""

    allocation: float
    useful: float
    days_below: int
    worst_day: float
    least_lead_h: float
    eviction: float
    evictions_of_work: float
    guaranteed_eviction: float
    broken_high: float
    spot_jqt_s: float
    high_jqt_s: float
    high_p99_jct_s: float
    lost_gpu_h: float
    promised_share: float


def lived(workload: Workload, name: str, quota: SpotQuota) -> Outcome:
    """The month in which spot jobs come, after a month of history."""
    from_s = (NUM_DAYS - SPOT_DAYS) * DAY_S
    return replay(workload, find_policy(name, quota), from_s, NUM_DAYS * DAY_S)


def row_of(outcome: Outcome, fifo: Outcome) -> Row:
    """What is compared, and how the days stand beside those of plain FIFO."""
    metrics, apart = outcome.metrics(), outcome.daily() - fifo.daily()
    return Row(
        allocation=metrics.allocation_rate,
        useful=metrics.useful_rate,
        days_below=int((apart < -1e-9).sum()),
        worst_day=float(apart.min()),
        least_lead_h=float((outcome.delivered_gpu_h() - fifo.delivered_gpu_h()).min() / outcome.capacity_gpus.sum()),
        eviction=metrics.eviction_rate,
        evictions_of_work=1000 * metrics.num_evictions / max(1.0, useful_spot_gpu_h(outcome)),
        guaranteed_eviction=outcome.broken().mean,
        broken_high=outcome.broken().high,
        spot_jqt_s=metrics.spot_jqt_s.mean,
        high_jqt_s=metrics.high_jqt_s.mean,
        high_p99_jct_s=metrics.high_jct_s.p99,
        lost_gpu_h=metrics.lost_gpu_s / 3600.0,
        promised_share=promised_share(outcome),
    )


def useful_spot_gpu_h(outcome: Outcome) -> float:
    """GPU-hours of spot runs up to their last kept period, in the window."""
    hours = slice(int(outcome.from_s // 3600), int(outcome.to_s // 3600))
    return float(outcome.useful_gpu_s[:, hours, Grade.GUARANTEED :].sum()) / 3600.0


def promised_share(outcome: Outcome) -> float:
    """Of the GPU-time of spot jobs, how much ran with a promise."""
    hours = slice(int(outcome.from_s // 3600), int(outcome.to_s // 3600))
    by_grade = outcome.allocated_gpu_s[:, hours].sum(axis=(0, 1))
    return float(by_grade[Grade.GUARANTEED] / max(1.0, by_grade[Grade.GUARANTEED :].sum()))


def measure_loads(
    seeds: Sequence[int],
    loads: Iterable[str] = tuple(LOADS),
    names: Iterable[str] = ("fifo", *EVALUATED, *PUBLISHED, *STOCK, *OURS),
) -> dict[str, dict[str, list[Row]]]:
    """A row for each load, scheduler and seed."""
    return {load: _rows(LOADS[load], seeds, tuple(names)) for load in loads}


def _rows(preset: str, seeds: Sequence[int], names: tuple[str, ...]) -> dict[str, list[Row]]:
    rows: dict[str, list[Row]] = {name: [] for name in names}
    for seed in seeds:
        workload = generate(preset, Streams(seed), NUM_DAYS)
        fifo = lived(workload, "fifo", SpotQuota())
        for name in names:
            rows[name].append(row_of(lived(workload, name, SpotQuota()), fifo))
    return rows


def mean_of(rows: Sequence[Row], field: str) -> float:
    """The mean over seeds."""
    return float(np.mean([getattr(row, field) for row in rows]))


def load_table(load: str, rows: dict[str, list[Row]], seeds: Sequence[int]) -> Table:
    """One line for each scheduler, means over the seeds."""
    columns = (
        Column("scheduler"), Column("allocation", "", 4), Column("useful", "", 4),
        Column("days below FIFO", f"of {SPOT_DAYS * len(seeds)}", 0), Column("worst day", "pp", 2),
        Column("delivered, least lead", "h of the pool", 2), Column("eviction rate", "", 4),
        Column("evictions for 1,000 useful GPU h", "", 2), Column("promises broken", "", 4),
        Column("95 % bound", "", 4), Column("spot JQT", "s", 0), Column("HP JQT", "s", 0),
        Column("HP p99 JCT", "s", 0), Column("lost", "GPU h", 0),
    )  # fmt: skip
    cells = tuple(
        (
            name, mean_of(of, "allocation"), mean_of(of, "useful"), sum(row.days_below for row in of),
            100 * min(row.worst_day for row in of), min(row.least_lead_h for row in of), mean_of(of, "eviction"),
            mean_of(of, "evictions_of_work"), mean_of(of, "guaranteed_eviction"),
            max(row.broken_high for row in of), mean_of(of, "spot_jqt_s"), mean_of(of, "high_jqt_s"),
            mean_of(of, "high_p99_jct_s"), mean_of(of, "lost_gpu_h"),
        )
        for name, of in rows.items()
    )  # fmt: skip
    return Table(f"287 nodes of eight GPUs, {load} spot load", columns, cells, f"Means over seeds {tuple(seeds)}.")


def checks_of(rows: dict[str, dict[str, list[Row]]]) -> list[Check]:
    """GFS beside the mean of the four baselines, as evaluated and as published, over all loads; and its promises."""
    checks = [
        Check.at_least(f"{field} lower than the baselines {form}", _reduction(rows, names, field), bar)
        for form, names in (("as evaluated", EVALUATED), ("as published", PUBLISHED))
        for field, bar in REDUCTION_BARS.items()
    ]
    worst = max(row.broken_high for load in rows.values() for row in load["gfs"])
    return [*checks, Check.at_most("guaranteed grade: broken, upper bound, worst seed", worst, BROKEN_BAR)]


def _reduction(rows: dict[str, dict[str, list[Row]]], names: Sequence[str], field: str) -> float:
    """By how much GFS is below the mean of others, on average over loads."""
    shares = [
        1 - mean_of(load["gfs"], field) / float(np.mean([mean_of(load[name], field) for name in names]))
        for load in rows.values()
    ]
    return float(np.mean(shares))


# Ablations ------------------------------------------------------------------------------------------------------------

Variant = tuple[str, Callable[[], SpotQuota]]


def variants(full: str) -> dict[str, Variant]:
    """The whole system first, then without each of its parts."""
    return {
        "full": (full, SpotQuota),
        "no forecast": (full, lambda: SpotQuota(make_forecast=forecast_by("last_week_peak"))),
        "no feedback": (full, lambda: SpotQuota(has_feedback=False)),
        "simple placement": (f"{full}_simple_place", SpotQuota),
        "simple preemption": (f"{full}_simple_preempt", SpotQuota),
    }


def measure_ablations(full: str, seeds: Sequence[int], load: str = "medium") -> dict[str, list[Row]]:
    """A row for each variant and seed; differences are paired by the seed."""
    rows: dict[str, list[Row]] = {name: [] for name in variants(full)}
    for seed in seeds:
        workload = generate(LOADS[load], Streams(seed), NUM_DAYS)
        fifo = lived(workload, "fifo", SpotQuota())
        for name, (policy, make_quota) in variants(full).items():
            rows[name].append(row_of(lived(workload, policy, make_quota()), fifo))
    return rows


def ablation_table(full: str, rows: dict[str, list[Row]], seeds: Sequence[int]) -> Table:
    """Each variant beside the whole: the mean difference of the pairs, and its standard error."""
    fields = {
        "spot_jqt_s": ("spot JQT", "s", 0),
        "eviction": ("eviction rate", "", 4),
        "guaranteed_eviction": ("promises broken", "", 4),
        "lost_gpu_h": ("lost", "GPU h", 0),
        "promised_share": ("time with a promise", "", 3),
    }
    columns = [Column("variant")]
    for name, unit, digits in fields.values():
        columns += [Column(name, unit, digits), Column(f"{name} more", unit, digits), Column("error", unit, digits)]
    cells = []
    for name, of in rows.items():
        cell: list[str | float] = [name]
        for field in fields:
            apart = [getattr(row, field) - getattr(whole, field) for row, whole in zip(of, rows["full"], strict=True)]
            cell += [mean_of(of, field), float(np.mean(apart)), float(np.std(apart, ddof=1)) / sqrt(len(apart))]
        cells.append(tuple(cell))
    return Table(
        f"{full} without its parts, medium load", tuple(columns), tuple(cells), f"Seeds {tuple(seeds)}, paired."
    )
