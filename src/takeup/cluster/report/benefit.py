"""What a scheduler is worth: GPU-hours that count, at explicit prices, against another scheduler on the same jobs.

A GPU-hour counts if it was allocated and not lost to an eviction; work that was thrown away and done again is paid for
once. Days are what the interval is over: the difference of each day is one observation.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from takeup.cluster.model import Grade
from takeup.cluster.scheduling.outcome import Outcome
from takeup.core.arrays import Floats
from takeup.core.report import Cell, Column, Series, Table
from takeup.core.seeds import Streams
from takeup.core.stats import Interval, bootstrap_interval
from takeup.errors import BadInput

HOUR_S, HOURS_A_DAY, DAYS_A_MONTH = 3600.0, 24, 30


@dataclass(frozen=True, slots=True)
class GpuPrices:
    """USD for a GPU-hour by pool: of spot jobs, and of high-priority jobs where it is not the same."""

    spot: Mapping[str, float]
    high: Mapping[str, float] = field(default_factory=dict)

    def of(self, grade: Grade, pool: str) -> float:
        """The price of an hour of this grade in a pool."""
        if grade == Grade.HIGH and pool in self.high:
            return self.high[pool]
        if pool not in self.spot:
            raise BadInput(f"pool {pool!r} has no price; name one for every pool, such as '--price {pool}=1.2'")
        return self.spot[pool]


@dataclass(frozen=True, slots=True, eq=False)
class Benefit:
    """Day by day and pool by pool, what `ours` gains over `other`: `[pool, day]`, in GPU-hours and in USD."""

    ours: str
    other: str
    pools: tuple[str, ...]
    first_day: int
    prices: GpuPrices
    spot_gpu_h: Floats
    high_gpu_h: Floats
    lost_gpu_h: Floats
    usd: Floats

    @property
    def num_days(self) -> int:
        return int(self.usd.shape[1])

    def month_usd(self, pool: int | None = None) -> float:
        return DAYS_A_MONTH * float(self._days(pool).mean())

    def interval_usd(self, seed: int, pool: int | None = None) -> Interval | None:
        """Where the benefit of a month lies with 95 % confidence; None with less than two days."""
        days = self._days(pool)
        if len(days) < 2:
            return None
        rng = Streams(seed).stream("benefit")
        found = bootstrap_interval(days, rng=rng)
        return Interval(DAYS_A_MONTH * found.low, DAYS_A_MONTH * found.high, found.level)

    def _days(self, pool: int | None) -> Floats:
        return np.asarray(self.usd.sum(axis=0) if pool is None else self.usd[pool])


def benefit_of(ours: Outcome, other: Outcome, prices: GpuPrices) -> Benefit:
    """The difference of two replays of the same jobs over the whole days of their window."""
    if (ours.pools, ours.from_s, ours.to_s) != (other.pools, other.from_s, other.to_s):
        raise BadInput("two replays of different fleets or windows cannot be compared; replay the same jobs")
    first_day = int(np.ceil(ours.from_s / HOUR_S / HOURS_A_DAY))
    num_days = int(ours.to_s / HOUR_S // HOURS_A_DAY) - first_day
    if num_days < 1:
        raise BadInput("the window holds no whole day; a benefit needs one day or more, better a few weeks")
    counted = _counted_gpu_h(ours, first_day, num_days) - _counted_gpu_h(other, first_day, num_days)
    lost = _daily(ours.wasted_gpu_s, first_day, num_days) - _daily(other.wasted_gpu_s, first_day, num_days)
    price = np.array([[prices.of(grade, pool) for grade in Grade] for pool in ours.pools])
    return Benefit(
        ours=ours.scheduler,
        other=other.scheduler,
        pools=ours.pools,
        first_day=first_day,
        prices=prices,
        spot_gpu_h=counted[:, :, Grade.GUARANTEED :].sum(axis=2),
        high_gpu_h=counted[:, :, Grade.HIGH],
        lost_gpu_h=lost.sum(axis=2),
        usd=(counted * price[:, None, :]).sum(axis=2),
    )


def _counted_gpu_h(outcome: Outcome, first_day: int, num_days: int) -> Floats:
    return _daily(outcome.allocated_gpu_s - outcome.wasted_gpu_s, first_day, num_days)


def _daily(gpu_s: Floats, first_day: int, num_days: int) -> Floats:
    """`[pool, day, grade]` in GPU-hours."""
    hours = gpu_s[:, HOURS_A_DAY * first_day : HOURS_A_DAY * (first_day + num_days)] / HOUR_S
    total = hours.reshape(len(gpu_s), num_days, HOURS_A_DAY, len(Grade)).sum(axis=2)
    return np.asarray(np.round(total, 6))  # what two replays have in common must cancel


def benefit_table(benefit: Benefit, seed: int) -> Table:
    """One row for each pool and one for all: the prices, what was gained a day, and USD a month with its interval."""
    columns = (
        Column("pool"),
        Column("spot price", "USD/GPU-h", 3),
        Column("high price", "USD/GPU-h", 3),
        *(Column(f"more {name}", "GPU-h/day", 1) for name in ("spot", "high", "lost")),
        *(Column(name, "USD", 0) for name in ("a month", "from", "to")),
    )
    rows = [_benefit_row(benefit, seed, place) for place in range(len(benefit.pools))]
    if len(rows) > 1:
        rows.append(_benefit_row(benefit, seed, None))
    note = (
        f"{benefit.ours} against {benefit.other} on the same jobs, {benefit.num_days} days; net of work that was lost; "
        "a month is thirty mean days, with 95 % confidence if days are independent"
    )
    return Table("Benefit", columns, tuple(rows), note)


def _benefit_row(benefit: Benefit, seed: int, place: int | None) -> tuple[Cell, ...]:
    interval = benefit.interval_usd(seed, place)
    gains = (benefit.spot_gpu_h, benefit.high_gpu_h, benefit.lost_gpu_h)
    daily = (float((each.sum(axis=0) if place is None else each[place]).mean()) for each in gains)
    pool = None if place is None else benefit.pools[place]
    prices = (
        (None, None) if pool is None else (benefit.prices.of(kind, pool) for kind in (Grade.GUARANTEED, Grade.HIGH))
    )
    ends = (None, None) if interval is None else (interval.low, interval.high)
    return ("all" if pool is None else pool, *prices, *daily, benefit.month_usd(place), *ends)


def days_table(benefit: Benefit) -> Table:
    """One row for each day, all pools together."""
    gains = (benefit.spot_gpu_h, benefit.high_gpu_h, benefit.lost_gpu_h, benefit.usd)
    columns = (
        Column("day"),
        *(Column(f"more {name}", "GPU-h", 1) for name in ("spot", "high", "lost")),
        Column("benefit", "USD", 0),
    )
    rows = tuple(
        (benefit.first_day + day, *(float(each[:, day].sum()) for each in gains)) for day in range(benefit.num_days)
    )
    return Table("Day by day", columns, rows)


def benefit_series(benefit: Benefit) -> Series:
    """The benefit of every day and pool."""
    rows: tuple[dict[str, Cell], ...] = tuple(
        {"day": benefit.first_day + day, "pool": pool, "benefit": float(benefit.usd[place, day])}
        for place, pool in enumerate(benefit.pools)
        for day in range(benefit.num_days)
    )
    return Series("Benefit by day", "day", "benefit", rows, "pool", y_unit="USD", kind="step")
