"""From a scenario to a report: combines workloads, policies, engines and reports of caching."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

from pydantic import field_validator, model_validator

from takeup.caching.contract import PolicySpec
from takeup.caching.model import AdmissionDecision, CachingResult, CostModel, EngineModel, Miss, Workload
from takeup.caching.policies import find_policy
from takeup.caching.report import Prediction, job_report, whatif_report
from takeup.caching.simulate.expectations import expected_by_job
from takeup.caching.simulate.plain import simulate
from takeup.caching.traces import generate, read_trace
from takeup.caching.traces.spark_event_log import EventLog, read_event_log
from takeup.core.progress import progress
from takeup.core.report import Cell, Column, Report, Table
from takeup.core.scenario import Scenario, validate
from takeup.core.seeds import Streams
from takeup.core.sweep import sweep
from takeup.core.units import format_bytes, parse_amount
from takeup.errors import BadInput, BadTrace

SHOWN_DECISIONS = 20
RECORDED = "recorded"  # a size of the cache: that of the run in the event log
UNROLL_BYTES = 1 << 20  # what Spark reserves for a block that it begins to store, spark.storage.unrollMemoryThreshold
EXECUTION_SHARE = 0.5  # of the pool, which tasks may take from stored blocks: 1 - spark.memory.storageFraction
GIVES_WAY = 1.01  # times the task time of Spark's own rule
WORTH_KERNELS = 30_000  # accesses; below that, loading the kernels takes longer than the plain engine
WORTH_PROCESSES = 20_000_000  # accesses; below that, starting processes takes longer than the replay


class CachingScenario(Scenario):
    """One caching run. Sizes carry their unit (`2GB`) or are a share of the working set (`40%`)."""

    domain: Literal["caching"] = "caching"
    verb: Literal["simulate", "compare", "whatif"]
    policies: tuple[str, ...] = ("lru",)
    capacities: tuple[str, ...] = ("40%",)
    workload: str | None = None
    trace: str | None = None
    allow_truncated: bool = False
    miss: Miss = "disk"
    cost_model: CostModel = "additive"
    profile: Literal["online", "recurring"] = "recurring"
    disk_bytes_per_s: float = 100e6
    plain: bool = False
    reasons: bool = False

    @field_validator("policies")
    @classmethod
    def _known_policies(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        if not names:
            raise ValueError("name at least one policy")
        for name in names:
            find_policy(name)
        return names

    @field_validator("capacities")
    @classmethod
    def _real_sizes(cls, sizes: tuple[str, ...]) -> tuple[str, ...]:
        if not sizes:
            raise ValueError("give at least one size of the cache")
        for size in sizes:
            if size != RECORDED:
                parse_amount(size)
        return sizes

    @model_validator(mode="after")
    def _one_source(self) -> CachingScenario:
        if (self.workload is None) == (self.trace is None):
            raise ValueError("give either a workload by name or a trace file, and not both")
        return self


Point = tuple[CachingScenario, str, int]


def run_again(values: Mapping[str, Any], source: str, *, quiet: bool = False) -> Report:
    """Run the scenario that a file or a report holds."""
    return run(validate(CachingScenario, values, source), quiet=quiet)


def run(scenario: CachingScenario, *, on: str | None = None, quiet: bool = False) -> Report:
    """Run the scenario; sweeps run on the Dask cluster at `on`, if given."""
    if scenario.reasons:
        return _decisions(scenario)
    if scenario.verb == "whatif":
        return _whatif(scenario, quiet)
    data, notes = load(scenario)
    quick = _quick(scenario, data, len(scenario.capacities) * len(scenario.policies))
    points: list[Point] = [
        (quick, policy, _size_bytes(size, data)) for size in scenario.capacities for policy in scenario.policies
    ]
    with progress(f"caching {scenario.verb}", len(points), quiet=quiet) as tick:
        num_processes = None if data.num_accesses * len(points) > WORTH_PROCESSES else 1
        results = sweep(_replay_jobs, points, on=on, num_processes=num_processes, progress=lambda done, total: tick())
    title, whole_bytes = _title(scenario, data), data.working_set_bytes
    return job_report(results, whole_bytes, title, scenario.model_dump(), scenario.seed, notes)


def _quick(scenario: CachingScenario, data: Workload, num_runs: int) -> CachingScenario:
    """The scenario on the engine that is done first: the plain one where there is little to replay."""
    plain = scenario.plain or data.num_accesses * num_runs < WORTH_KERNELS
    return scenario.model_copy(update={"plain": plain})


def _size_bytes(text: str, data: Workload) -> int:
    """The size of a cache in bytes; one that holds no block at all is refused."""
    size_bytes, smallest = parse_amount(text).of(data.working_set_bytes), int(data.block_bytes.min())
    if size_bytes < smallest and text.strip().isdecimal():
        found = f"{text!r} is {size_bytes} bytes, and the smallest block of {data.name} has {format_bytes(smallest)}"
        raise BadInput(f"{found}; write a share such as '{min(int(text), 100)}%', or a unit such as '{text}MB'")
    return size_bytes


def load(scenario: CachingScenario) -> tuple[Workload, tuple[str, ...]]:
    """The workload or trace of the scenario, and notes on what was inferred."""
    if scenario.workload is not None:
        return _generated(scenario.workload, scenario.seed), ()
    assert scenario.trace is not None
    data, notes = _from_file(scenario.trace, scenario.allow_truncated, _version(Path(scenario.trace)))
    if data.working_set_bytes == 0:
        raise BadTrace(scenario.trace, "holds no blocks, so there is nothing to cache; give a trace that reads some")
    return data, notes


def _load_log(scenario: CachingScenario) -> EventLog:
    assert scenario.trace is not None
    return _from_log(scenario.trace, scenario.allow_truncated, _version(Path(scenario.trace)))


# Each process of a sweep makes or reads the data once.
@lru_cache(maxsize=2)
def _generated(name: str, seed: int) -> Workload:
    return generate(name, Streams(seed).stream(f"caching {name}"))


@lru_cache(maxsize=2)
def _from_file(path: str, allow_truncated: bool, version: object) -> tuple[Workload, tuple[str, ...]]:
    return read_trace(Path(path), allow_truncated=allow_truncated)


@lru_cache(maxsize=2)
def _from_log(path: str, allow_truncated: bool, version: object) -> EventLog:
    return read_event_log(path, allow_truncated=allow_truncated)


def _version(path: Path) -> object:
    """A value that changes when the file does; a missing file is reported by its reader."""
    with suppress(OSError):
        found = path.stat()
        return found.st_mtime_ns, found.st_size
    return None


def _title(scenario: CachingScenario, data: Workload) -> str:
    return f"Caching: {', '.join(scenario.policies)} on {data.name}"


def _model(scenario: CachingScenario, capacity_bytes: int) -> EngineModel:
    return EngineModel(capacity_bytes, scenario.miss, scenario.cost_model, scenario.profile, scenario.disk_bytes_per_s)


def _replay_jobs(point: Point) -> CachingResult:
    scenario, policy, capacity_bytes = point
    spec, model = find_policy(policy), _model(scenario, capacity_bytes)
    if scenario.verb == "whatif":
        return _replay_log(scenario, spec, model)
    return _engine(scenario.plain)(spec, load(scenario)[0], model)


def _engine(plain: bool) -> Callable[[PolicySpec, Workload, EngineModel], CachingResult]:
    """The plain engine or the compiled one, which is imported only where it is used: that takes a second."""
    if plain:
        return simulate
    from takeup.caching.simulate.compiled.replay import replay

    return replay


def _replay_log(scenario: CachingScenario, spec: PolicySpec, model: EngineModel) -> CachingResult:
    """As the plug-in runs: without a profile, policies that use the graph also guess what later jobs read.

    Where that costs more than Spark's own rule, the plug-in notices and gives way.
    """
    log, replay = _load_log(scenario), _engine(scenario.plain)
    if spec.offline or not spec.uses_table or scenario.profile == "recurring":
        return replay(spec, log.workload, model)
    result = simulate(spec, log.workload, model, expected=expected_by_job(log.workload, log.kinds))
    stock = replay(find_policy("spark"), log.workload, model)
    gives_way = result.task_time_s > GIVES_WAY * stock.task_time_s
    return replace(stock, policy=spec.name) if gives_way else result


def _whatif(scenario: CachingScenario, quiet: bool) -> Report:
    """Every policy at every size under several assumptions: the first is the prediction, the others its range."""
    log = _load_log(scenario)
    sizes = _pool_sizes(scenario, log)
    quick = _quick(scenario, log.workload, 4 * len(sizes) * len(scenario.policies))  # four assumptions at most
    points = [
        (quick.model_copy(update={"profile": profile}), policy, capacity_bytes)
        for size in sizes
        for policy in scenario.policies
        for profile, capacity_bytes in _assumptions(scenario.profile, log, size)
    ]
    with progress("caching whatif", len(points), quiet=quiet) as tick:
        results = iter(sweep(_replay_jobs, points, num_processes=1, progress=lambda done, total: tick()))
    predictions = [
        Prediction(policy, size, tuple(next(results) for _ in _assumptions(scenario.profile, log, size)))
        for size in sizes
        for policy in scenario.policies
    ]
    recorded = (log.num_found, log.num_reads, log.pool_bytes)
    title = _title(scenario, log.workload)
    return whatif_report(predictions, log.workload, title, scenario.model_dump(), recorded, log.described)


def _pool_sizes(scenario: CachingScenario, log: EventLog) -> list[int]:
    whole = log.workload.working_set_bytes
    sizes = [log.pool_bytes if size == RECORDED else parse_amount(size).of(whole) for size in scenario.capacities]
    known = [size for size in dict.fromkeys(sizes) if size > 0]
    if not known:
        raise BadInput(f"{scenario.trace} does not say how much memory the run had; give a size such as '50%' or '2GB'")
    return known


def _assumptions(profile: str, log: EventLog, pool_bytes: int) -> list[tuple[str, int]]:
    """What is known of the future, and how much memory is left for blocks: as expected, at least, at most.

    Tasks use a part of the pool of the recorded run. Any other size is taken to be for blocks alone.
    """
    other = "recurring" if profile == "online" else "online"
    if pool_bytes != log.pool_bytes:
        return [(profile, pool_bytes), (other, pool_bytes)]
    workers, block_bytes = log.workload.num_workers, int(log.workload.block_bytes.mean())
    tasks_bytes = log.num_slots * workers * log.execution_bytes
    left_bytes = pool_bytes - min(int(EXECUTION_SHARE * pool_bytes), tasks_bytes)
    left_bytes -= workers * max(0, UNROLL_BYTES - block_bytes)  # a block is stored only where so much could be freed
    num_others = (log.num_slots - 1) * workers  # tasks that store a block at the same time
    expected = left_bytes - num_others * min(block_bytes, UNROLL_BYTES)
    least = left_bytes - num_others * max(block_bytes, UNROLL_BYTES)
    return [(profile, max(1, expected)), (profile, max(1, least)), (profile, pool_bytes), (other, max(1, expected))]


def _decisions(scenario: CachingScenario) -> Report:
    """The first decisions of the first policy, with their reasons."""
    spec, (workload, _) = find_policy(scenario.policies[0]), load(scenario)
    rows: list[tuple[Cell, ...]] = []

    def record(block: int, room: AdmissionDecision) -> None:
        rows.extend(("evict", str(eviction.block), eviction.reason) for eviction in room.evict)
        if not room.admit:
            rows.append(("refuse", str(block), room.reason))

    simulate(spec, workload, _model(scenario, _size_bytes(scenario.capacities[0], workload)), record)
    columns = (Column("decision"), Column("block"), Column("reason"))
    note = f"the first {min(SHOWN_DECISIONS, len(rows))} of {len(rows)} decisions"
    table = Table(f"What {spec.name} would decide on {workload.name}", columns, tuple(rows[:SHOWN_DECISIONS]), note)
    return Report(table.title, "caching", scenario.model_dump(), scenario.seed, (table,))
