"""One question about a fleet, from the command line or from a file."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, field_validator, model_validator

from takeup.cluster.policies import find_policy
from takeup.core.report import Check, Report, Series, Table
from takeup.core.scenario import Scenario
from takeup.errors import BadScenario

SEVERAL = {"simulate", "compare"}


class ClusterScenario(Scenario):
    """One question about a fleet. Days count from the beginning of the trace; prices are USD for a GPU-hour.

    Without `from_day` the window begins on the day of the first spot job; jobs after `to_day` are left out.
    """

    domain: Literal["cluster"] = "cluster"
    verb: Literal["simulate", "compare", "run", "offer", "benefit", "forecast"]
    policies: tuple[str, ...] = ("gfs",)
    workload: str | None = None
    trace: str | None = None
    nodes: str | None = None
    strict: bool = False
    spot_share: float = Field(0.2, ge=0, le=1)
    spot_organisations: tuple[str, ...] = ()
    guarantee_h: float = Field(1.0, gt=0, le=23)
    checkpoint_s: float = Field(3600.0, gt=0)
    time_unit_s: float = Field(1.0, gt=0)
    pools: tuple[str, ...] = ()
    num_days: int | None = Field(None, ge=1)
    scale: float = Field(1.0, gt=0)
    from_day: float | None = Field(None, ge=0)
    to_day: float | None = Field(None, gt=0)
    probability: float = Field(0.9, gt=0, lt=1)
    model: str = "anchored"
    feedback: bool = True
    at_day: float | None = Field(None, ge=0)
    num_gpus: int = Field(8, ge=1)
    gang_nodes: int = Field(0, ge=0)
    against: str = "fifo"
    prices: tuple[str, ...] = ()
    high_prices: tuple[str, ...] = ()
    models: tuple[str, ...] = ("anchored", "persistence", "last_week_peak")
    demand: str | None = None
    num_hours: int = Field(4, ge=1, le=24)
    engine: str = "embedded"
    conf: str | None = None
    journal: str | None = None
    metrics: str | None = None
    period_s: float | None = Field(None, gt=0)
    for_s: float | None = Field(None, ge=0)
    dry_run: bool = False

    @field_validator("policies")
    @classmethod
    def _known_policies(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        if not names:
            raise ValueError("name at least one policy")
        for name in names:
            find_policy(name)
        return names

    @field_validator("prices", "high_prices")
    @classmethod
    def _real_prices(cls, given: tuple[str, ...]) -> tuple[str, ...]:
        price_table(given, ())
        return given

    @model_validator(mode="after")
    def _goes_together(self) -> ClusterScenario:
        if self.workload is not None and self.trace is not None:
            raise ValueError("give either a workload by name or a trace file, and not both")
        if self.verb not in SEVERAL and len(self.policies) > 1:
            raise ValueError(f"{self.verb!r} takes one policy; 'compare' takes several")
        if self.from_day is not None and self.to_day is not None and self.from_day >= self.to_day:
            raise ValueError(f"the window from day {self.from_day:g} to {self.to_day:g} is empty; begin earlier")
        return self


def price_table(given: tuple[str, ...], pools: tuple[str, ...]) -> dict[str, float]:
    """Prices by pool from texts such as `A100=1.2`; a number alone is the price of every pool."""
    table: dict[str, float] = {}
    for text in given:
        pool, _, number = text.rpartition("=")
        try:
            price = float(number)
        except ValueError:
            price = -1.0
        if not 0 <= price < float("inf"):
            raise BadScenario(f"{text!r} is no price; write POOL=USD such as 'A100=1.2', or a number for all pools")
        if pool and pools and pool not in pools:
            raise BadScenario(f"{text!r} prices a pool that is not there; the pools are {', '.join(pools)}")
        table |= dict.fromkeys([pool] if pool else pools, price)
    return table


def report_on(
    scenario: ClusterScenario,
    title: str,
    *parts: Table | Series,
    notes: tuple[str, ...] = (),
    checks: tuple[Check, ...] = (),
) -> Report:
    """A report of these tables and charts, with the scenario in it."""
    tables = tuple(part for part in parts if isinstance(part, Table))
    series = tuple(part for part in parts if isinstance(part, Series))
    return Report(title, "cluster", scenario.model_dump(), scenario.seed, tables, series, checks, notes)
