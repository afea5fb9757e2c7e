"""Forecasts compared with outcomes: scores of models, the band over time, and the next hours."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from takeup.cluster.model import Offer
from takeup.core.arrays import Floats
from takeup.core.report import Cell, Column, Series, Table

HOURS_A_DAY = 24.0
MOST_POINTS = 250


@dataclass(frozen=True, slots=True, eq=False)
class ForecastRun:
    """A backtest of one model. `bound[origin, pool]` was forecast to hold with `level` for the maximum.

    `highest` is the actual maximum in the `num_hours` after each origin; `median` the forecast median of it. `coming`
    has the bounds after the last hour: `[pool, hour ahead]`.
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


MenuRows = tuple[tuple[float, ...], ...]


@dataclass(frozen=True, slots=True)
class OfferRequest:
    """A request and what was known: GPUs on whole nodes (0: anywhere), in a pool with these idle and promised GPUs.

    `free_gpus[i][j]` is what demand leaves free for `hours[i]` with `probabilities[j]`, and `left_gpus` what of it is
    not promised yet; `free_nodes` are whole nodes, empty if they were not counted.
    """

    pool: str
    num_gpus: int
    num_nodes: int
    capacity_gpus: float
    idle_gpus: float
    idle_nodes: int
    promised_gpus: float
    coefficient: float
    num_hours_known: int
    hours: tuple[float, ...]
    probabilities: tuple[float, ...]
    free_gpus: MenuRows
    left_gpus: MenuRows
    free_nodes: MenuRows = ()

    @property
    def can_start(self) -> bool:
        """Whether such a job could run at this moment."""
        return self.num_gpus <= self.idle_gpus and self.num_nodes <= self.idle_nodes

    def refusal(self) -> str:
        """Why nothing is promised."""
        if self.num_gpus > self.idle_gpus:
            return f"{self.num_gpus} GPUs were asked for and {self.idle_gpus:g} are idle: it would wait"
        if self.num_nodes > self.idle_nodes:
            return f"{self.num_nodes} whole nodes were asked for and {self.idle_nodes} are idle: it would wait"
        if self.num_nodes and self.free_nodes and self.free_nodes[0][0] < self.num_nodes:
            return f"the forecast leaves {self.free_nodes[0][0]:.0f} whole nodes free for {self.hours[0]:g} h"
        return (
            f"the forecast leaves {self.free_gpus[0][0]:.0f} GPUs free for {self.hours[0]:g} h, and "
            f"{self.promised_gpus:g} are promised"
        )


def offers_table(asked: OfferRequest, offers: Sequence[Offer]) -> Table:
    """One row for each promise worth having, the surest first; then what can be had without one."""
    rows: list[tuple[Cell, ...]] = [(o.hours, 100 * o.probability, o.num_gpus, _reason(asked, o)) for o in offers]
    if asked.can_start:
        words = "idle GPUs fit; it is evicted first when high-priority work comes"
        rows.append((0.0, None, asked.num_gpus, words if offers else f"{words}; no promise: {asked.refusal()}"))
    where = f" on {asked.num_nodes} whole nodes" if asked.num_nodes else ""
    note = "" if rows else f"nothing can start now: {asked.refusal()}"
    columns = (Column("hours", "h", 1), Column("kept with", "%", 0), Column("GPUs"), Column("why"))
    return Table(f"Offers for {asked.num_gpus} GPUs{where} in {asked.pool}", columns, tuple(rows), note)


def _reason(asked: OfferRequest, offer: Offer) -> str:
    row, column = asked.hours.index(offer.hours), asked.probabilities.index(offer.probability)
    free, left = asked.free_gpus[row][column], asked.left_gpus[row][column]
    return (
        f"demand leaves {free:.0f} of {asked.capacity_gpus:.0f} GPUs free for {offer.hours:g} h with "
        f"{offer.probability:.0%}, {left:.0f} of them not promised; {asked.idle_gpus:g} are idle"
    )


def menu_table(asked: OfferRequest) -> Table:
    """GPUs that can still be promised, for hours and probabilities."""
    columns = (
        Column("hours", "h", 1),
        *(Column(f"{level:.0%} {kind}", "GPUs", 0) for level in asked.probabilities for kind in ("free", "left")),
    )
    rows = tuple(
        (hours, *(value for pair in zip(free, left, strict=True) for value in pair))
        for hours, free, left in zip(asked.hours, asked.free_gpus, asked.left_gpus, strict=True)
    )
    known = f"the forecast knows {asked.num_hours_known} hours"
    if not asked.num_hours_known:
        known = "no hour is over yet: until then demand is taken to move by a quarter of the pool in an hour"
    note = (
        f"free: what demand leaves, times a safety coefficient of {asked.coefficient:.2f} learnt from broken promises; "
        f"left: not promised yet; {known}"
    )
    return Table(f"What can be promised in {asked.pool}", columns, rows, note)


def nodes_table(asked: OfferRequest) -> Table:
    """Whole nodes that demand leaves free, for hours and probabilities."""
    columns = (Column("hours", "h", 1), *(Column(f"{level:.0%}", "nodes", 0) for level in asked.probabilities))
    rows = tuple((hours, *free) for hours, free in zip(asked.hours, asked.free_nodes, strict=True))
    note = "whole: no high-priority job sits there; gangs that need whole nodes get promises only as far as these go"
    return Table(f"Whole nodes that stay free in {asked.pool}", columns, rows, note)
