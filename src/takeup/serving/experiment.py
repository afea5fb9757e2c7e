"""From a scenario to a report: wires arrivals, designs, policies and the queue simulator together."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import AfterValidator, Field, model_validator

from takeup.core.progress import progress
from takeup.core.report import Cell, Column, Report, Series, Table
from takeup.core.scenario import Scenario, validate
from takeup.errors import UnknownName
from takeup.serving.diffusion.policies import Grouping
from takeup.serving.model import AdapterReplay, Arrival, QueueOutcome
from takeup.serving.scheduling.adapters import ADAPTER_POLICIES, ORDERS
from takeup.serving.scheduling.queue import Admission
from takeup.serving.scheduling.routing import ROUTES
from takeup.serving.simulate.designs import DESIGNS, design_of
from takeup.serving.simulate.instance import InstancePolicies, simulate_queue
from takeup.serving.traces.arrivals import (
    at_rate,
    poisson_arrivals,
    read_arrivals,
    read_gentd26,
    retail_arrivals,
    with_loads,
)

# Report of a queue simulation: latency, queueing, images per GPU-minute, and LoRA loads -------------------------------

PERCENTS = (50, 95, 99)
LATENCY_COLUMNS = (
    Column("rate", "1/s", digits=2),
    Column("design"),
    Column("GPUs"),
    Column("mean", "s", digits=2),
    *(Column(f"p{percent}", "s", digits=2) for percent in PERCENTS),
    Column("queueing", "s", digits=2),
    Column("queueing p99", "s", digits=2),
    Column("done", "%", digits=1),
)
WORK_COLUMNS = (
    Column("rate", "1/s", digits=2),
    Column("design"),
    Column("images", "1/GPU-minute", digits=2),
    Column("busy", "%", digits=1),
    Column("rows", digits=2),
    Column("loads", "1/request"),
    Column("complete", "%", digits=1),
    Column("most waiting"),
)
NOTE = "latency of finished images; queueing: until the first step; done: neither refused nor expired"
WORK_NOTE = (
    "images: per GPU-minute of allocated GPUs; rows: mean per call; loads: LoRAs that were not in memory; "
    "complete: requests that had to load none"
)


@dataclass(frozen=True, slots=True)
class RatePoint:
    """The outcome of one design at one arrival rate."""

    rate_per_s: float
    outcome: QueueOutcome


def queue_report(points: Sequence[RatePoint], title: str, scenario: Mapping[str, object], seed: int) -> Report:
    """Tables of request latency and GPU utilisation, and a chart of latency by arrival rate."""
    tables = (
        Table("Latency of requests", LATENCY_COLUMNS, tuple(map(_latency_row, points)), NOTE),
        Table("GPU utilisation", WORK_COLUMNS, tuple(map(_work_row, points)), WORK_NOTE),
    )
    return Report(title, "serving", scenario, seed, tables, _charts(points))


def report_of(result: QueueOutcome | AdapterReplay) -> Report:
    """A simulated queue, or a replay of an adapter cache, as a report."""
    if isinstance(result, AdapterReplay):
        return _adapter_report(result)
    last_s = max((one.arrival.arrival_s for one in result.served), default=0.0)
    point = RatePoint(len(result.served) / last_s if last_s else 0.0, result)
    return queue_report([point], f"Queue under {result.design}", {}, 0)


def _adapter_report(result: AdapterReplay) -> Report:
    columns = (*map(Column, ("policy", "requests", "uses", "loads")), Column("loads", "1/request"), Column("complete"))
    counts = (result.num_requests, result.num_uses, result.num_loads)
    row = (result.policy, *counts, result.loads_per_request, result.complete_share)
    bars: tuple[dict[str, Cell], ...] = ({"of": "uses", "share": result.num_loads / max(1, result.num_uses)},)
    note = "complete: share of requests that found all their adapters in memory"
    chart = Series("Adapters that were loaded", "of", "share", bars, kind="bar")
    title = f"Adapter cache under {result.policy}"
    return Report(title, "serving", {}, 0, (Table("Loads", columns, (row,), note),), (chart,))


def _latency_row(point: RatePoint) -> tuple[Cell, ...]:
    outcome, done = point.outcome, point.outcome.done
    latencies, queueing = [one.latency_s for one in done], [one.queueing_s for one in done]
    return (
        point.rate_per_s,
        outcome.design,
        outcome.num_gpus,
        _mean(latencies),
        *(_percentile(latencies, percent) for percent in PERCENTS),
        _mean(queueing),
        _percentile(queueing, 99),
        100 * len(done) / max(1, len(outcome.served)),
    )


def _work_row(point: RatePoint) -> tuple[Cell, ...]:
    outcome = point.outcome
    whole_s = max((one.end_s for one in outcome.served), default=0.0) * outcome.num_gpus
    return (
        point.rate_per_s,
        outcome.design,
        outcome.images_per_gpu_minute,
        100 * outcome.busy_s * outcome.gpus_per_instance / whole_s if whole_s else None,
        outcome.num_call_rows / outcome.num_calls if outcome.num_calls else None,
        outcome.loads_per_request,
        100 * outcome.complete_share,
        outcome.num_most_waiting,
    )


def _mean(values: Sequence[float]) -> float | None:
    return float(np.mean(values)) if values else None


def _percentile(values: Sequence[float], percent: int) -> float | None:
    return float(np.percentile(values, percent)) if values else None


def _charts(points: Sequence[RatePoint]) -> tuple[Series, ...]:
    rows: list[dict[str, Cell]] = []
    for point in points:
        latencies = [one.latency_s for one in point.outcome.done]
        for percent in PERCENTS:
            value = _percentile(latencies, percent)
            if value is not None:
                rows.append(_chart_row(point, f"p{percent}", value))
    if len({point.rate_per_s for point in points}) > 1:
        return (Series("Latency", "rate", "latency", tuple(rows), "design", "share", x_unit="1/s", y_unit="s"),)
    return (Series("Latency", "design", "latency", tuple(rows), "design", "share", y_unit="s", kind="bar"),)


def _chart_row(point: RatePoint, share: str, value: float) -> dict[str, Cell]:
    return {"rate": point.rate_per_s, "design": point.outcome.design, "share": share, "latency": value}


# Scenario of the queue simulator, from a file or the command line, and the requests it describes ----------------------


def _one_of(kind: str, known: Collection[str]) -> AfterValidator:
    def check(name: str) -> str:
        if name not in known:
            raise UnknownName(kind, name, known)
        return name

    return AfterValidator(check)


DesignName = Annotated[str, _one_of("design", DESIGNS)]
Rate = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class ServingScenario(Scenario):
    """One simulator run. `rates_per_s`: requests per second; `eviction`, `route` and `order` apply to `takeup` only."""

    domain: Literal["serving"] = "serving"
    verb: Literal["simulate", "compare"]
    designs: tuple[DesignName, ...] = Field(default=("takeup",), min_length=1)
    workload: Literal["retail", "poisson", "gentd26"] = "retail"
    trace: str | None = None
    loras: str | None = None
    num_requests: int = Field(default=2000, ge=1)
    rates_per_s: tuple[Rate, ...] = Field(default=(1.0,), min_length=1)
    num_steps: int = Field(default=50, ge=1)
    num_gpus: int = Field(default=8, ge=1)
    loads: Literal["bandwidth", "gentd26"] = "bandwidth"
    costs: str | None = None
    cache: int = Field(default=10, ge=1)
    eviction: Annotated[str, _one_of("policy of the cache", ADAPTER_POLICIES)] = "lerc"
    route: Annotated[str, _one_of("route", ROUTES)] = "affinity"
    order: Annotated[str, _one_of("order", ORDERS)] = "in_order"
    patience: int = Field(default=64, ge=0)
    max_rows: int = Field(default=16, ge=2)
    max_running: int | None = Field(default=None, ge=1)
    max_waiting: int | None = Field(default=None, ge=0)
    deadline_s: float | None = Field(default=None, gt=0)
    in_time: bool = False

    @model_validator(mode="after")
    def _has_its_files(self) -> ServingScenario:
        wanted = [self.workload == "gentd26"] * 2
        if [self.trace is not None, self.loras is not None] != wanted:
            raise ValueError("the workload 'gentd26' needs both 'trace' and 'loras', two files; no other takes them")
        return self


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


# From a scenario to a report: wires arrivals, designs, policies, simulator and reports together -----------------------

__all__ = ["DESIGNS", "ServingScenario", "run", "run_again", "serve"]

OWN_DESIGN = "takeup"


def run_again(values: Mapping[str, Any], source: str, *, quiet: bool = False) -> Report:
    """Run a scenario that was read from a file or a report."""
    return run(validate(ServingScenario, values, source), quiet=quiet)


def run(scenario: ServingScenario, *, quiet: bool = False) -> Report:
    """Simulate the scenario with every design, at every arrival rate."""
    points = []
    with progress(f"serving {scenario.verb}", len(scenario.rates_per_s) * len(scenario.designs), quiet=quiet) as tick:
        for rate_per_s in scenario.rates_per_s:
            arrivals = arrivals_of(scenario, rate_per_s)
            for name in scenario.designs:
                points.append(RatePoint(rate_per_s, serve(arrivals, name, scenario)))
                tick()
    title = f"Serving: {', '.join(scenario.designs)} on {scenario.workload}"
    return queue_report(points, title, scenario.model_dump(), scenario.seed)


def serve(arrivals: list[Arrival], name: str, scenario: ServingScenario) -> QueueOutcome:
    """Simulate one design. Only `takeup` uses the scenario's policies; others use least-busy routing and LRU."""
    is_ours = name == OWN_DESIGN
    make_policy = ADAPTER_POLICIES[scenario.eviction if is_ours else "lru"]
    order = ORDERS[scenario.order] if is_ours and scenario.order != "in_order" else None
    max_waiting = math.inf if scenario.max_waiting is None else scenario.max_waiting
    return simulate_queue(
        arrivals,
        design_of(name, max_running=scenario.max_running, costs=scenario.costs),
        num_gpus=scenario.num_gpus,
        rules=InstancePolicies(Grouping(scenario.max_rows), make_policy, scenario.cache, order, scenario.patience),
        route=ROUTES[scenario.route if is_ours else "least_busy"],
        admit=Admission(max_waiting, scenario.in_time),
    )
