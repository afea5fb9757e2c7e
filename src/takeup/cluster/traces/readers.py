"""Trace files of any known format, recognised by their columns; tables with one row per job, Philly and Helios."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from takeup.cluster.traces.workload import (
    LEAST_SHARE,
    Field,
    JobColumns,
    LoadedTrace,
    Nodes,
    TraceOptions,
    TraceRows,
    labelled,
    load,
    nodes_of,
    read_fields,
    skip_odd_sizes,
    split_gangs,
)
from takeup.core.arrays import Floats
from takeup.core.limits import MOST_COUNT
from takeup.core.trace import column_names
from takeup.errors import BadInput, BadTrace

ONE_POOL, ONE_ORGANISATION = "gpu", "everyone"


@dataclass(frozen=True, slots=True)
class ColumnNames:
    """What the columns are called; without a name, everything is alike.

    `gpus` counts those of a worker if there are `workers`, else those of the whole job. Instead of a duration there may
    be an `end`, after `start` or else after `submit`. `kind` holds one of `spot_values` in spot jobs.
    """

    submit: str = "submit_s"
    duration: str | None = "duration_s"
    end: str | None = None
    start: str | None = None
    gpus: str = "gpus"
    workers: str | None = None
    pool: str | None = None
    organisation: str | None = None
    kind: str | None = None
    spot_values: tuple[str, ...] = ("spot", "Spot", "SPOT", "BE", "1")

    def __post_init__(self) -> None:
        if (self.duration is None) == (self.end is None):
            raise BadInput("a job needs a column for its duration or one for its end, and not both; name one")

    def fields(self) -> Iterable[Field]:
        """All columns that have a name."""
        yield Field(self.submit, "moment")
        yield Field(self.gpus, least=0, most=MOST_COUNT)
        if self.duration:
            yield Field(self.duration, above=0)
        yield from (Field(name, "moment") for name in (self.end, self.start) if name)
        if self.workers:
            yield Field(self.workers, least=1, most=MOST_COUNT)
        yield from (Field(name, "text") for name in (self.pool, self.organisation, self.kind) if name)


def read_plain(path: Path, names: ColumnNames | None = None, options: TraceOptions | None = None) -> LoadedTrace:
    """The jobs of a table; time starts with the first of them."""
    names, options = names or ColumnNames(), options or TraceOptions()
    rows = read_fields(path, tuple(names.fields()), strict=options.strict)
    rows.skip(rows.columns[names.gpus] == 0, "asks for no GPU")
    skip_odd_sizes(rows, names.gpus, names.workers, strict=options.strict)
    times = (names.submit, names.duration, names.end, names.start)
    rows.limit_times(filter(None, times), options.time_unit_s, strict=options.strict)
    duration_s = _durations_s(rows, names, options)
    organisation = _texts(rows, names.organisation, ONE_ORGANISATION)
    is_spot, notes = _kinds(rows, names, organisation, options)
    gpus, workers = _shapes(rows, names)
    submit_s = _seconds(rows, names.submit, options)
    columns = JobColumns(
        is_spot=is_spot,
        pool=_texts(rows, names.pool, ONE_POOL),
        organisation=organisation,
        gpus=gpus,
        workers=workers,
        submit_s=submit_s - submit_s.min(initial=np.inf if len(submit_s) else 0.0),
        duration_s=duration_s[rows.used],
    )
    nodes, how = nodes_of(rows, columns, options)
    return load(path.name.partition(".")[0], rows, columns, nodes, options, (*notes, *how))


def _seconds(rows: TraceRows, name: str, options: TraceOptions) -> npt.NDArray[np.float64]:
    return np.asarray(rows[name] * options.time_unit_s)


def _durations_s(rows: TraceRows, names: ColumnNames, options: TraceOptions) -> npt.NDArray[np.float64]:
    """Of every row of the file; those that do not end after they begin are skipped."""
    if names.duration:
        return np.asarray(rows.columns[names.duration] * options.time_unit_s)
    end = str(names.end)
    lasted = rows.columns[end] - rows.columns[names.start or names.submit]
    rows.check(~(lasted > 0), f"{end} is not after the beginning", end, strict=options.strict)
    return np.asarray(lasted * options.time_unit_s)


def _texts(rows: TraceRows, name: str | None, otherwise: str) -> npt.NDArray[np.object_]:
    return rows[name] if name else np.full(len(rows), otherwise, np.object_)


def _kinds(
    rows: TraceRows, names: ColumnNames, organisation: npt.NDArray[np.object_], options: TraceOptions
) -> tuple[npt.NDArray[np.bool_], tuple[str, ...]]:
    if names.kind and not options.spot_organisations:
        values = rows[names.kind].astype(str)
        is_spot = np.isin(np.char.lower(values.astype(np.str_)), [value.lower() for value in names.spot_values])
        shown = ", ".join(dict.fromkeys(values.tolist()[:MOST_SHOWN]))
        others = "" if is_spot.any() else f" (such as {shown}); --spot-organisation names those that are"
        return is_spot, (f"{is_spot.sum()} jobs are spot by their column {names.kind!r}{others}",)
    is_spot, note = labelled(organisation, options)
    return is_spot, (note,)


def _shapes(rows: TraceRows, names: ColumnNames) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.int64]]:
    if names.workers:
        return rows[names.gpus], rows[names.workers].astype(np.int64)
    return split_gangs(rows[names.gpus])


# Philly-style and Helios-style tables: GPUs of the whole job, a virtual cluster or a user, and no spot label ----------
#
# What the columns are called where the trace of Microsoft's Philly was published again.
_SUBMIT = ("submit_time", "submitted_time", "submission_time", "arrival_time", "timestamp", "submit_s")
_DURATION = ("duration", "duration_s", "run_time", "runtime")
_END = ("end_time", "finished_time", "finish_time")
_START = ("start_time", "started_time")
_GPUS = ("num_gpus", "num_gpu", "gpu_num", "gpus", "gpu_count")
_POOL = ("gpu_model", "gpu_type", "pool")
# Columns that label spot jobs, and the words that do; a number says nothing where it may be a rank.
_WORDS = ("spot", "be", "best_effort", "best-effort", "besteffort", "low", "preemptible", "scavenger")
_FLAGS = ("1", "true", "yes", "spot", "preemptible")
_KINDS = {"spot": _FLAGS, "preemptible": _FLAGS, "class": _WORDS, "qos": _WORDS, "priority": _WORDS}
MOST_SHOWN = 3
_ORGANISATION = ("organisation", "organization", "vc", "virtual_cluster", "virtualcluster", "user", "tenant")


def read_philly(path: Path, options: TraceOptions | None = None) -> LoadedTrace:
    """A table of jobs by any of the usual names; without a duration it is the time from start to end."""
    found = column_names(path)
    duration = _first(found, _DURATION)
    names = ColumnNames(
        submit=_needed(path, found, _SUBMIT, "the moment of submission"),
        duration=duration,
        end=None if duration else _needed(path, found, _END, "a duration or an end", _DURATION),
        start=None if duration else _first(found, _START),
        gpus=_needed(path, found, _GPUS, "the number of GPUs"),
        pool=_first(found, _POOL),
        organisation=_first(found, _ORGANISATION),
        kind=_first(found, tuple(_KINDS)),
    )
    words = _KINDS[names.kind.lower()] if names.kind else names.spot_values
    return read_plain(path, replace(names, spot_values=words), options)


def _first(found: Sequence[str], names: Sequence[str]) -> str | None:
    """The column that has one of these names, in any case."""
    by_name = {column.lower(): column for column in reversed(found)}
    return next((by_name[name] for name in names if name in by_name), None)


def _needed(path: Path, found: Sequence[str], names: Sequence[str], what: str, others: Sequence[str] = ()) -> str:
    """The column with one of the names; `others` would do as well."""
    column = _first(found, names)
    if column is None:
        expected = f"no column for {what}; expected one of {', '.join((*others, *names))} among {', '.join(found)}"
        raise BadTrace(path, f"{expected}; rename it")
    return column


OPENB_NODES = "openb_node_list_gpu_node.csv"


def read_trace(path: Path, nodes: Path | None = None, options: TraceOptions | None = None) -> LoadedTrace:
    """A trace of any known format; `nodes` is its list of nodes, by default the usual file in the same folder.

    A directory is read as the trace v2026 that it holds.
    """
    path = path / JOBS_FILE if path.is_dir() else path
    found = set(column_names(path))
    if {"job_type", "gpu_request", "gpu_model"} <= found:
        return read_v2026(path, _nodes(path, nodes, NODES_FILE), options)
    if {"gpu_milli", "qos", "num_gpu"} <= found:
        return read_openb(path, _nodes(path, nodes, OPENB_NODES), options)
    if nodes is not None:
        raise BadInput(f"{nodes} was given, but {path.name} is no trace with a list of nodes; leave it out")
    if {"app_name", "gpu_request", "creation_time", "deletion_time"} <= found:
        return read_v2025(path, options)
    return read_philly(path, options)


def _nodes(path: Path, nodes: Path | None, usual: str) -> Path:
    found = nodes or path.parent / usual
    if not found.exists():
        raise BadTrace(path, f"its list of nodes is not at {found}; name the file that holds it")
    return found


# Alibaba's cluster-trace-v2026-spot-gpu: `job_info_df.csv` and `node_info_df.csv` -------------------------------------

JOBS_FILE, NODES_FILE = "job_info_df.csv", "node_info_df.csv"

_NODE_FIELDS = (Field("gpu_model", "text"), Field("gpu_capacity_num", above=0, most=MOST_COUNT))
_JOB_FIELDS = (
    Field("organization", "text"),
    Field("gpu_model", "text"),
    Field("gpu_request", above=0, most=MOST_COUNT),
    Field("worker_num", least=1, most=MOST_COUNT),
    Field("submit_time", least=0),
    Field("duration", above=0),
    Field("job_type", "text"),
)


def read_v2026(jobs: Path, nodes: Path, options: TraceOptions | None = None) -> LoadedTrace:
    """Jobs are labelled HP or Spot; a pool is a GPU model."""
    options = options or TraceOptions()
    rows = read_fields(jobs, _JOB_FIELDS, strict=options.strict)
    kind = rows.columns["job_type"].astype(str)
    rows.check(~np.isin(kind, ("HP", "Spot")), "job_type is neither HP nor Spot", "job_type", strict=options.strict)
    skip_odd_sizes(rows, "gpu_request", "worker_num", strict=options.strict)
    unit = options.time_unit_s
    rows.limit_times(("submit_time", "duration"), unit, strict=options.strict)
    columns = JobColumns(
        is_spot=kind[rows.used] == "Spot",
        pool=rows["gpu_model"],
        organisation=rows["organization"],
        gpus=rows["gpu_request"],
        workers=rows["worker_num"].astype(np.int64),
        submit_s=rows["submit_time"] * unit,
        duration_s=rows["duration"] * unit,
    )
    return load("v2026", rows, columns, _read_nodes(nodes, _NODE_FIELDS, options), options, ())


def _read_nodes(path: Path, fields: tuple[Field, Field], options: TraceOptions) -> Nodes:
    """The nodes of a list whose fields are model and GPUs; one without GPUs or model is none."""
    rows = read_fields(path, fields, strict=options.strict)
    nodes: defaultdict[str, list[int]] = defaultdict(list)
    for model, size in zip(*(rows[each.name].tolist() for each in fields), strict=True):
        if model and size >= 1:
            nodes[model].append(int(size))
    return {model: tuple(sizes) for model, sizes in nodes.items()}


# Alibaba's cluster-trace-gpu-v2025: instances of inference services, all of high priority; services are organisations
#
# An empty moment lies outside the trace. An instance without a creation was there when it began, one without a deletion
# when it ended, and is taken to end with it. Parts of services that ask for no GPU are left out.

OUTSIDE = -1.0
MOMENTS = ("creation_time", "scheduled_time", "deletion_time")
_FIELDS = (
    Field("app_name", "text"),
    Field("gpu_request", least=0, most=MOST_COUNT),
    *(Field(name, default=OUTSIDE) for name in MOMENTS),
)


def read_v2025(path: Path, options: TraceOptions | None = None) -> LoadedTrace:
    """Instances with GPUs in one pool; those of `options.spot_organisations` are spot, no others."""
    options = options or TraceOptions()
    rows = read_fields(path, _FIELDS, strict=options.strict)
    rows.skip(rows.columns["gpu_request"] == 0, "asks for no GPU")
    skip_odd_sizes(rows, "gpu_request", strict=options.strict)
    rows.limit_times(MOMENTS, options.time_unit_s, strict=options.strict)
    created_s, lasted_s, num_open = _times(rows, options)
    services = rows["app_name"]
    is_spot, kinds = _service_kinds(services, options)
    columns = JobColumns(
        is_spot=is_spot,
        pool=np.full(len(rows), "gpu", np.object_),
        organisation=services,
        gpus=rows["gpu_request"],
        workers=np.ones(len(rows), np.int64),
        submit_s=created_s[rows.used],
        duration_s=lasted_s[rows.used],
    )
    still = f"{num_open} instances were still there when the trace ended, and are taken to end with it"
    nodes, how = nodes_of(rows, columns, options)
    return load(path.name.partition(".")[0], rows, columns, nodes, options, (kinds, still, *how))


def _times(rows: TraceRows, options: TraceOptions) -> tuple[Floats, Floats, int]:
    """When each row of the file was created and how long it ran, in seconds, and how many ran until the end."""
    created, scheduled, deleted = (rows.columns[name] for name in MOMENTS)
    rows.skip((created != OUTSIDE) & (scheduled == OUTSIDE), "was never scheduled")
    is_open = deleted == OUTSIDE
    ended = np.where(is_open, max(rows[name].max(initial=0.0) for name in MOMENTS), deleted)
    created, scheduled = np.maximum(created, 0.0), np.maximum(scheduled, 0.0)
    wrong = "deletion_time is not after the beginning"
    rows.check(~(ended > scheduled), wrong, "deletion_time", strict=options.strict)
    return created * options.time_unit_s, (ended - scheduled) * options.time_unit_s, int((is_open & rows.used).sum())


def _service_kinds(services: npt.NDArray[np.object_], options: TraceOptions) -> tuple[npt.NDArray[np.bool_], str]:
    if options.spot_organisations:
        return labelled(services, options)
    return np.zeros(len(services), np.bool_), "all instances are of high priority; name services that are to be spot"


# Alibaba's cluster-trace-gpu-v2023 (openb): a list of pods and a list of nodes ----------------------------------------
#
# Best-effort pods (BE) are spot jobs, all others high priority. A pod lasts from when it was scheduled until it was
# deleted; pods that were never scheduled have no known duration and are skipped. One that names several models gets the
# first that has nodes; one that names none gets a random model, in proportion to the GPUs of those on which it fits.

_OPENB_NODE_FIELDS = (Field("model", "text", default=""), Field("gpu", least=0, most=MOST_COUNT))
_POD_FIELDS = (
    Field("num_gpu", least=0, most=MOST_COUNT),
    Field("gpu_milli", least=0, default=1000.0),
    Field("gpu_spec", "text", default=""),
    Field("qos", "text"),
    Field("creation_time", least=0),
    Field("deletion_time", least=0),
    Field("scheduled_time", default=-1.0),
)


def read_openb(pods: Path, nodes: Path, options: TraceOptions | None = None) -> LoadedTrace:
    """Pods that ask for GPUs; a pool is a GPU model."""
    options = options or TraceOptions()
    rows = read_fields(pods, _POD_FIELDS, strict=options.strict)
    gpus = _gpus(rows)
    rows.skip(gpus < LEAST_SHARE, "asks for no GPU")
    rows.skip(rows.columns["scheduled_time"] < 0, "was never scheduled")
    times = ("creation_time", "scheduled_time", "deletion_time")
    rows.limit_times(times, options.time_unit_s, strict=options.strict)
    lasted = rows.columns["deletion_time"] - rows.columns["scheduled_time"]
    rows.check(~(lasted > 0), "deletion_time is not after the beginning", "deletion_time", strict=options.strict)
    sizes = _read_nodes(nodes, _OPENB_NODE_FIELDS, options)
    pool, num_drawn = _pools(rows["gpu_spec"], gpus[rows.used], sizes, options)
    submit_s = rows["creation_time"] * options.time_unit_s
    jobs = JobColumns(
        is_spot=rows["qos"].astype(str) == "BE",
        pool=pool,
        organisation=np.full(len(rows), "everyone", np.object_),
        gpus=gpus[rows.used],
        workers=np.ones(len(rows), np.int64),
        submit_s=submit_s - (submit_s.min() if len(submit_s) else 0.0),
        duration_s=lasted[rows.used] * options.time_unit_s,
    )
    drawn = f"{num_drawn} pods name no GPU model; drawn by the GPUs of each, seed {options.streams.seed}"
    return load(pods.name.partition(".")[0], rows, jobs, sizes, options, (drawn,) if num_drawn else ())


def _gpus(rows: TraceRows) -> Floats:
    """Whole GPUs, or a share of one."""
    num_gpus, milli = rows.columns["num_gpu"], rows.columns["gpu_milli"]
    return np.asarray(np.where(num_gpus > 1, np.floor(num_gpus), num_gpus * (np.clip(milli, 0, 1000) / 1000)))


def _pools(
    specs: npt.NDArray[np.object_], gpus: Floats, nodes: Nodes, options: TraceOptions
) -> tuple[npt.NDArray[np.object_], int]:
    """The pool of each pod, and how many were drawn."""
    first = {spec: _first_known(spec, nodes) for spec in set(specs.tolist())}
    pools = np.array([first[spec] for spec in specs.tolist()], np.object_)
    open_pods = np.flatnonzero(specs == "")
    place = options.streams.stream("pools of openb").random(len(open_pods))
    for asked in np.unique(gpus[open_pods]).tolist():
        models, bounds = _by_gpus(nodes, asked)
        mine = gpus[open_pods] == asked
        if models:
            pools[open_pods[mine]] = np.array(models, np.object_)[np.searchsorted(bounds, place[mine], side="right")]
    return pools, len(open_pods)


def _first_known(spec: str, nodes: Mapping[str, object]) -> str:
    return next((model for model in spec.split("|") if model in nodes), spec)


def _by_gpus(nodes: Nodes, asked: float) -> tuple[list[str], Floats]:
    """Models whose nodes hold such a pod, and where each ends on a line from 0 to 1."""
    models = [model for model, sizes in nodes.items() if max(sizes) >= asked]
    totals = np.cumsum([sum(nodes[model]) for model in models], dtype=np.float64)
    return models, totals[:-1] / totals[-1] if models else totals
