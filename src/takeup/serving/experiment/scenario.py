"""Scenario of the queue simulator, from a file or the command line, and the requests it describes."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Literal

from pydantic import Field, field_validator, model_validator

from takeup.core.scenario import Scenario
from takeup.errors import UnknownName
from takeup.serving.experiment.designs import DESIGNS
from takeup.serving.policies.adapters import ADAPTER_POLICIES, ORDERS
from takeup.serving.policies.routing import ROUTES
from takeup.serving.traces.arrivals import at_rate, poisson_arrivals, read_arrivals, retail_arrivals, with_loads
from takeup.serving.traces.gentd26 import read_gentd26
from takeup.serving.traffic import Arrival


class ServingScenario(Scenario):
    """One simulator run. `rates_per_s`: requests per second; `eviction`, `route` and `order` apply to `takeup` only."""

    domain: Literal["serving"] = "serving"
    verb: Literal["simulate", "compare"]
    designs: tuple[str, ...] = ("takeup",)
    workload: Literal["retail", "poisson", "gentd26"] = "retail"
    trace: str | None = None
    loras: str | None = None
    num_requests: int = Field(default=2000, ge=1)
    rates_per_s: tuple[float, ...] = (1.0,)
    num_steps: int = Field(default=50, ge=1)
    num_gpus: int = Field(default=8, ge=1)
    loads: Literal["bandwidth", "gentd26"] = "bandwidth"
    costs: str | None = None
    cache: int = Field(default=10, ge=1)
    host_cache: int = Field(default=0, ge=0)
    host_load_s: float = Field(default=0.01, ge=0)
    eviction: str = "lerc"
    route: str = "affinity"
    order: str = "in_order"
    patience: int = Field(default=64, ge=0)
    max_rows: int = Field(default=16, ge=2)
    max_running: int | None = Field(default=None, ge=1)
    max_waiting: int | None = Field(default=None, ge=0)
    deadline_s: float | None = Field(default=None, gt=0)
    in_time: bool = False

    @field_validator("designs")
    @classmethod
    def _known_designs(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        if not names:
            raise ValueError("name at least one design")
        for name in names:
            _require("design", name, DESIGNS)
        return names

    @field_validator("eviction")
    @classmethod
    def _known_eviction(cls, name: str) -> str:
        return _require("policy of the cache", name, ADAPTER_POLICIES)

    @field_validator("route")
    @classmethod
    def _known_route(cls, name: str) -> str:
        return _require("route", name, ROUTES)

    @field_validator("order")
    @classmethod
    def _known_order(cls, name: str) -> str:
        return _require("order", name, ORDERS)

    @field_validator("rates_per_s")
    @classmethod
    def _real_rates(cls, rates: tuple[float, ...]) -> tuple[float, ...]:
        if not rates or any(not 0 < rate < math.inf for rate in rates):
            raise ValueError("give at least one rate, all above zero")
        return rates

    @model_validator(mode="after")
    def _has_its_files(self) -> ServingScenario:
        wanted = [self.workload == "gentd26"] * 2
        if [self.trace is not None, self.loras is not None] != wanted:
            raise ValueError("the workload 'gentd26' needs both 'trace' and 'loras', two files; no other takes them")
        return self


def _require(kind: str, name: str, known: object) -> str:
    assert isinstance(known, dict)
    if name not in known:
        raise UnknownName(kind, name, known)
    return name


def arrivals_of(scenario: ServingScenario, rate_per_s: float) -> list[Arrival]:
    """The requests of the scenario at this arrival rate, with load times and deadlines."""
    arrivals = with_loads(_arrivals(scenario, rate_per_s), scenario.loads, scenario.seed)
    if scenario.deadline_s is None:
        return arrivals
    return [replace(one, deadline_s=one.arrival_s + scenario.deadline_s) for one in arrivals]


def _arrivals(scenario: ServingScenario, rate_per_s: float) -> list[Arrival]:
    if scenario.workload == "gentd26":
        assert scenario.trace is not None
        assert scenario.loras is not None
        return at_rate(_gentd26(scenario.trace, scenario.loras)[: scenario.num_requests], rate_per_s)
    make = retail_arrivals if scenario.workload == "retail" else poisson_arrivals
    return make(scenario.num_requests, rate_per_s, scenario.seed, num_steps=scenario.num_steps)


@lru_cache(maxsize=1)
def _gentd26(trace: str, loras: str) -> list[Arrival]:
    return read_arrivals(Path(trace), read_gentd26(Path(loras)))
