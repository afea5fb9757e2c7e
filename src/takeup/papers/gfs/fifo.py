"""Against plain FIFO: who has delivered more GPU time by every hour, and how often promises were broken.

Days are no measure of that. Who works ahead has less left for a later day; where nobody is evicted, both do the same
work in the end, so that more on one day *must* be less on another. What counts is how much was delivered up to each
hour. Days are shown all the same, with the lead that GFS had when a lower one began.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from takeup.cluster.model import Grade
from takeup.core.report import Cell, Check, Column, Table
from takeup.papers.findings import Findings
from takeup.papers.gfs.loads import Load, Numbers

__all__ = ["against_fifo"]

Floats = npt.NDArray[np.float64]
TINY = 1e-9
NOTE = (
    "gfs less fifo, which has no quota and evicts nobody; delivered: GPU time allocated since the beginning, in hours "
    "of the whole pool; a day below FIFO is no loss where gfs was ahead before it and is still not behind after it"
)


def against_fifo(expected: Numbers, loads: Sequence[Load]) -> Findings:
    """Delivered GPU time up to every hour, days beside it, and how often guaranteed spot jobs were evicted."""
    checks: list[Check] = []
    for name in dict.fromkeys(load.name for load in loads):
        checks += _checks(expected, name, [load for load in loads if load.name == name])
    first = [load for load in loads if load.seed == expected["setting"]["seed"]]
    return Findings(tuple(checks), (_summary(loads), _lower_days(first)))


def _checks(expected: Numbers, name: str, draws: Sequence[Load]) -> list[Check]:
    bar, most = expected["fifo_bar"], round(100 * (1 - expected["setting"]["probability"]), 9)
    behind_h = max(-float(_lead_h(load).min()) for load in draws)
    gained = float(np.mean([_gap(load, "allocation_rate") for load in draws]))
    broken = max(100 * load.outcomes["gfs"].broken(Grade.GUARANTEED).high for load in draws)
    return [
        Check.at_least(f"{name} load, allocation less FIFO's, mean of seeds", gained, bar["least_gain_pp"], unit="pp"),
        Check.at_most(
            f"{name} load, delivered GPU time behind FIFO's, worst hour of any seed", behind_h,
            bar["most_behind_pool_h"], unit="h of the pool",
        ),
        Check.at_most(f"{name} load, eviction of guaranteed spot jobs, 95 % bound, worst seed", broken, most, unit="%"),
    ]  # fmt: skip


def _gap(load: Load, rate: str) -> float:
    """GFS less FIFO over the window, in percentage points."""
    ours, theirs = (getattr(load.metrics(name), rate) for name in ("gfs", "fifo"))
    return float(100 * (ours - theirs))


def _lead_h(load: Load) -> Floats:
    """By how much GFS is ahead at the end of each hour, in hours of the whole pool."""
    ours, theirs = (load.outcomes[name] for name in ("gfs", "fifo"))
    return (ours.delivered_gpu_h() - theirs.delivered_gpu_h()) / float(ours.capacity_gpus.sum())


def _daily_pp(load: Load) -> Floats:
    return 100 * (load.outcomes["gfs"].daily() - load.outcomes["fifo"].daily())


def _summary(loads: Sequence[Load]) -> Table:
    rows: tuple[tuple[Cell, ...], ...] = tuple(_summary_row(load) for load in loads)
    columns = (
        Column("load"), Column("seed"), Column("allocation", "pp", 3), Column("useful", "pp", 3),
        Column("delivered, least lead", "h", 3), Column("delivered, lead at the end", "h", 3),
        Column("days below"), Column("of"), Column("lowest day", "pp", 3), Column("guaranteed evicted", "%", 2),
    )  # fmt: skip
    return Table("Against FIFO", columns, rows, NOTE)


def _summary_row(load: Load) -> tuple[Cell, ...]:
    lead_h, daily = _lead_h(load), _daily_pp(load)
    broken = 1 - load.metrics("gfs").guarantee_kept[Grade.GUARANTEED]
    return (
        load.name, load.seed, _gap(load, "allocation_rate"), _gap(load, "useful_rate"), float(lead_h.min()),
        float(lead_h[-1]), int((daily < -TINY).sum()), len(daily), float(daily.min()), 100 * broken,
    )  # fmt: skip


def _lower_days(loads: Sequence[Load]) -> Table:
    """Every day on which less was allocated, and who had delivered more before and after it."""
    rows: list[tuple[Cell, ...]] = []
    for load in loads:
        lead_h, daily = _lead_h(load), _daily_pp(load)
        first = int(load.outcomes["gfs"].from_s // 3600)
        for day in np.flatnonzero(daily < -TINY).tolist():
            hour = first + 24 * day
            before_h = float(lead_h[hour - 1]) if hour else 0.0
            rows.append((load.name, day + 1, float(daily[day]), before_h, float(lead_h[hour + 23])))
    columns = (
        Column("load"), Column("day"), Column("allocation", "pp", 3),
        Column("lead before", "h of the pool", 3), Column("lead after", "h of the pool", 3),
    )  # fmt: skip
    return Table("Days with less allocation than FIFO", columns, tuple(rows), "FIFO had so much more left to do")
