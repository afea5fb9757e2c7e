"""One question about a fleet, from the command line or from a file, and the workload it is about."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt
from pydantic import Field, field_validator, model_validator

from takeup.cluster.model import Kind, Workload
from takeup.cluster.policies import find_policy
from takeup.cluster.traces import TraceOptions, generate, read_trace
from takeup.core.report import Check, Report, Series, Table
from takeup.core.scenario import Scenario
from takeup.core.seeds import Streams
from takeup.errors import BadInput, BadScenario, UnknownName

SEVERAL = {"simulate", "compare"}


class ClusterScenario(Scenario):
    """One question about a fleet. Days count from the beginning of the trace; prices are USD for a GPU-hour.

    Without `from_day` the window begins on the day of the first spot job; jobs after `to_day` are left out.
    """

    domain: Literal["cluster"] = "cluster"
    verb: Literal["simulate", "compare", "whatif", "run", "offer", "benefit", "forecast"]
    policies: tuple[str, ...] = ("gfs",)
    workload: str | None = None
    trace: str | None = None
    nodes: str | None = None
    strict: bool = False
    spot_share: float = Field(default=0.2, ge=0, le=1)
    spot_organisations: tuple[str, ...] = ()
    guarantee_h: float = Field(default=1.0, gt=0, le=23)
    checkpoint_s: float = Field(default=3600.0, gt=0)
    time_unit_s: float = Field(default=1.0, gt=0)
    pools: tuple[str, ...] = ()
    num_days: int | None = Field(default=None, ge=1)
    scale: float = Field(default=1.0, gt=0)
    from_day: float | None = Field(default=None, ge=0)
    to_day: float | None = Field(default=None, gt=0)
    probability: float = Field(default=0.9, gt=0, lt=1)
    model: str = "anchored"
    feedback: bool = True
    wait_price: float | None = Field(default=None, ge=0)
    at_day: float | None = Field(default=None, ge=0)
    num_gpus: int = Field(default=8, ge=1)
    gang_nodes: int = Field(default=0, ge=0)
    against: str = "fifo"
    prices: tuple[str, ...] = ()
    high_prices: tuple[str, ...] = ()
    models: tuple[str, ...] = ("anchored", "persistence", "last_week_peak")
    demand: str | None = None
    num_hours: int = Field(default=4, ge=1, le=24)
    engine: str | None = None
    conf: str | None = None
    journal: str | None = None
    metrics: str | None = None
    listen: str | None = None
    period_s: float | None = Field(default=None, gt=0)
    for_s: float | None = Field(default=None, ge=0)
    dry_run: bool = False
    records: str | None = None
    column_map: tuple[str, ...] = ()
    own_policy: str | None = None
    drawn_share: float | None = Field(default=None, ge=0, le=1)
    saves_s: float | None = Field(default=None, gt=0)
    frontier: bool = False

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
        if self.verb == "run" and self.engine is None:
            raise ValueError("'run' needs an engine, slurm or kubernetes; 'simulate' is for jobs in virtual time")
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


DAY_S, HOUR_S = 86_400.0, 3600.0
DEFAULT_WORKLOAD = "small"
Notes = tuple[str, ...]


def load_workload(scenario: ClusterScenario) -> tuple[Workload, Notes]:
    """The jobs and nodes of the scenario, and what one should know about them."""
    if scenario.trace is not None:
        workload, notes = _from_file(scenario, _version(Path(scenario.trace)))
    else:
        workload, notes = _generated(scenario), ()
    if scenario.pools:
        workload = select_jobs(workload, pools=scenario.pools)
    if scenario.to_day is not None:
        workload = select_jobs(workload, workload.job_submit_s < scenario.to_day * DAY_S)
    if workload.num_jobs == 0:
        raise BadInput(f"{workload.name} has no job in this window; choose other days or pools")
    return workload, notes


@lru_cache(maxsize=2)
def _generated(scenario: ClusterScenario) -> Workload:
    name = scenario.workload or DEFAULT_WORKLOAD
    pools = scenario.pools or None
    return generate(name, Streams(scenario.seed), num_days=scenario.num_days, scale=scenario.scale, pools=pools)


@lru_cache(maxsize=2)
def _from_file(scenario: ClusterScenario, version: object) -> tuple[Workload, Notes]:
    if scenario.num_days is not None or scenario.scale != 1.0:
        raise BadInput("a trace is what it is; cut it with from_day and to_day instead of num_days and scale")
    options = TraceOptions(
        strict=scenario.strict,
        spot_organisations=scenario.spot_organisations,
        spot_share=scenario.spot_share,
        streams=Streams(scenario.seed),
        guarantee_h=scenario.guarantee_h,
        checkpoint_s=scenario.checkpoint_s,
        time_unit_s=scenario.time_unit_s,
    )
    loaded = read_trace(Path(str(scenario.trace)), Path(scenario.nodes) if scenario.nodes else None, options)
    skipped = ", ".join(f"{count} because {reason}" for reason, count in loaded.skipped.items())
    notes = loaded.notes
    if skipped:
        notes = (*notes, f"{loaded.num_skipped} of {loaded.num_rows} rows were skipped: {skipped}")
    if loaded.num_too_large:
        notes = (*notes, f"{loaded.num_too_large} jobs are larger than their whole pool and never run")
    return loaded.workload, notes


def _version(path: Path) -> object:
    """Something that changes when the file does; what is wrong with a file that is not there, its reader says."""
    with suppress(OSError):
        found = path.stat()
        return found.st_mtime_ns, found.st_size
    return None


def select_jobs(
    workload: Workload, jobs: npt.NDArray[np.bool_] | None = None, pools: Sequence[str] | None = None
) -> Workload:
    """Some jobs of a workload, and of its pools only these."""
    unknown = [pool for pool in pools or () if pool not in workload.pools]
    if unknown:
        raise UnknownName(f"pool of {workload.name}", unknown[0], workload.pools)
    names = workload.pools if pools is None else tuple(pool for pool in workload.pools if pool in pools)
    number = np.array([names.index(pool) if pool in names else -1 for pool in workload.pools], np.int64)
    kept = number[workload.job_pool] >= 0
    kept &= True if jobs is None else jobs
    nodes = number[workload.node_pool] >= 0
    columns = {name: getattr(workload, name)[kept] for name in Workload.__slots__ if name.startswith("job_")}
    columns["job_pool"] = number[columns["job_pool"]]
    node_pool, node_gpus = number[workload.node_pool[nodes]], workload.node_gpus[nodes]
    return replace(workload, pools=names, node_pool=node_pool, node_gpus=node_gpus, **columns)


def window_of(scenario: ClusterScenario, workload: Workload) -> tuple[float, float]:
    """The window of the metrics in seconds, in whole hours; by default from the day of the first spot job."""
    spot_s = workload.job_submit_s[workload.job_kind == Kind.SPOT]
    first_day = 0.0 if not len(spot_s) else float(spot_s[0] // DAY_S)
    from_s = DAY_S * (first_day if scenario.from_day is None else scenario.from_day)
    last_s = float(np.ceil((workload.job_submit_s[-1] + 1) / HOUR_S) * HOUR_S)
    to_s = last_s if scenario.to_day is None else scenario.to_day * DAY_S
    if from_s >= to_s:
        raise BadInput(
            f"the window begins on day {from_s / DAY_S:g}, and the last job comes on day {to_s / DAY_S:.2f}; "
            "choose an earlier from_day"
        )
    return from_s // HOUR_S * HOUR_S, to_s


def hourly_demand(workload: Workload, num_hours: int = 0) -> npt.NDArray[np.float64]:
    """`[hour, pool]`: the peak GPUs that high-priority jobs would hold in each hour if no job had to wait.

    Without a number of hours, until the last job was submitted.
    """
    num_hours = num_hours or int(workload.job_submit_s[-1] // HOUR_S) + 1
    demand = np.zeros((num_hours, len(workload.pools)))
    high = workload.job_kind == Kind.HIGH
    for pool in range(len(workload.pools)):
        mine = high & (workload.job_pool == pool)
        start_s, gpus = workload.job_submit_s[mine], (workload.job_gpus * workload.job_workers)[mine]
        times_s = np.concatenate([start_s, start_s + workload.job_duration_s[mine]])
        changes = np.concatenate([gpus, -gpus])
        order = np.argsort(times_s, kind="stable")
        times_s, levels = times_s[order], np.cumsum(changes[order])
        is_last = np.append(times_s[1:] != times_s[:-1], True)[: len(times_s)]  # of all changes at its moment
        demand[:, pool] = _hourly_maxima(times_s[is_last], levels[is_last], num_hours)
    return np.maximum(demand, 0.0)


def _hourly_maxima(
    times_s: npt.NDArray[np.float64], levels: npt.NDArray[np.float64], num_hours: int
) -> npt.NDArray[np.float64]:
    """The highest level of each hour; a level holds from its time until the next."""
    starts_s = HOUR_S * np.arange(num_hours)
    place = np.searchsorted(times_s, starts_s, side="right") - 1
    highest = np.where(place >= 0, levels[np.maximum(place, 0)], 0.0) if len(levels) else np.zeros(num_hours)
    hour = (times_s // HOUR_S).astype(np.int64)
    inside = hour < num_hours
    np.maximum.at(highest, hour[inside], levels[inside])
    return np.asarray(highest)
