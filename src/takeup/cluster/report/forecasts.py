"""Forecasts compared with outcomes: scores of models, the band over time, and the next hours."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from takeup.core.arrays import Floats
from takeup.core.report import Cell, Column, Series, Table

HOURS_A_DAY = 24.0
MOST_POINTS = 250


@dataclass(frozen=True, slots=True, eq=False)
class ForecastRun:
    """A backtest of one model. `bound[origin, pool]` was forecast to hold with `level` for the maximum.

    `highest` is the actual maximum in the `num_hours` after each origin; `median` the forecast median of it. `coming`
    has the bounds after the last hour: `[pool, hour ahead]`, and `coming_median` the medians.
    """

    model: str
    pools: tuple[str, ...]
    level: float
    num_hours: int
    first_origin: int
    bound: Floats
    median: Floats
    highest: Floats
    coming: Floats
    coming_median: Floats

    @property
    def pinball(self) -> float:
        """The mean pinball loss of the bound, in GPUs; lower is better."""
        miss = self.highest - self.bound
        return float(np.maximum(self.level * miss, (self.level - 1) * miss).mean())

    @property
    def coverage(self) -> float:
        """The share of maxima at or below the bound."""
        return float((self.highest <= self.bound).mean())


def forecast_table(runs: Sequence[ForecastRun]) -> Table:
    """One row for each model."""
    columns = (
        Column("model"),
        Column("pinball", "GPUs", 2),
        Column("coverage", "%", 1),
        Column("median off by", "GPUs", 2),
        Column("reserved", "GPUs", 0),
        Column("needed", "GPUs", 0),
    )
    rows = tuple(
        (
            run.model,
            run.pinball,
            100 * run.coverage,
            float(np.abs(run.highest - run.median).mean()),
            float(run.bound.sum(axis=1).mean()),
            float(run.highest.sum(axis=1).mean()),
        )
        for run in runs
    )
    run = runs[0]
    note = (
        f"the highest demand of the next {run.num_hours} hours, said at {len(run.bound)} hours for {len(run.pools)} "
        f"pools; bounds should hold in {run.level:.0%} of all cases; pinball: lower is better"
    )
    return Table("Forecasts", columns, rows, note)


def forecast_series(run: ForecastRun) -> Series:
    """Forecasts and outcomes for the last origins of every pool."""
    rows: list[dict[str, Cell]] = []
    first = max(0, len(run.bound) - MOST_POINTS)
    for place, pool in enumerate(run.pools):
        for origin in range(first, len(run.bound)):
            day = (run.first_origin + origin) / HOURS_A_DAY
            values = (run.highest[origin, place], run.median[origin, place], run.bound[origin, place])
            names = ("came", "median", f"{run.level:.0%} bound")
            rows += [
                {"pool": pool, "day": day, "what": name, "GPUs": float(value)}
                for name, value in zip(names, values, strict=True)
            ]
    title = f"Highest demand of the next {run.num_hours} hours, {run.model}"
    return Series(title, "day", "GPUs", tuple(rows), "what", "pool" if len(run.pools) > 1 else None)


def next_hours_table(run: ForecastRun, capacity_gpus: Floats) -> Table:
    """For each pool, what demand stays under for the next hours, and what that leaves."""
    ahead = range(run.coming.shape[1])
    columns = (
        Column("pool"),
        Column("capacity", "GPUs", 0),
        *(Column(f"under, {hour + 1} h", "GPUs", 0) for hour in ahead),
        *(Column(f"free, {hour + 1} h", "GPUs", 0) for hour in ahead),
    )
    rows = tuple(
        (
            pool,
            float(capacity_gpus[place]),
            *run.coming[place].tolist(),
            *np.maximum(0.0, capacity_gpus[place] - run.coming[place]).tolist(),
        )
        for place, pool in enumerate(run.pools)
    )
    return Table(f"The next hours, {run.model}, with {run.level:.0%}", columns, rows)
