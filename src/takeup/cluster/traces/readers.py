"""Trace files of any known format, recognised by their columns; tables with one row per job, Philly and Helios."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from takeup.cluster.traces.alibaba import JOBS_FILE, NODES_FILE, read_openb, read_v2025, read_v2026
from takeup.cluster.traces.fields import Field, TraceRows, read_fields
from takeup.cluster.traces.workload import (
    JobColumns,
    LoadedTrace,
    TraceOptions,
    labelled,
    load,
    nodes_of,
    skip_odd_sizes,
    split_gangs,
)
from takeup.core.trace import column_names
from takeup.errors import BadInput, BadTrace

# A table with one row for each job, under whatever names its columns have ---------------------------------------------

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
        yield Field(self.gpus, least=0)
        if self.duration:
            yield Field(self.duration, above=0)
        yield from (Field(name, "moment") for name in (self.end, self.start) if name)
        if self.workers:
            yield Field(self.workers, least=1)
        yield from (Field(name, "text") for name in (self.pool, self.organisation, self.kind) if name)


def read_plain(path: Path, names: ColumnNames | None = None, options: TraceOptions | None = None) -> LoadedTrace:
    """The jobs of a table; time starts with the first of them."""
    names, options = names or ColumnNames(), options or TraceOptions()
    rows = read_fields(path, tuple(names.fields()), strict=options.strict)
    rows.skip(rows.columns[names.gpus] == 0, "asks for no GPU")
    skip_odd_sizes(rows, names.gpus, names.workers, strict=options.strict)
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
    if names.kind:
        return np.isin(rows[names.kind].astype(str), names.spot_values), ()
    is_spot, note = labelled(organisation, options)
    return is_spot, (note,)


def _shapes(rows: TraceRows, names: ColumnNames) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.int64]]:
    if names.workers:
        return rows[names.gpus], rows[names.workers].astype(np.int64)
    return split_gangs(rows[names.gpus])


# Philly-style and Helios-style tables: GPUs of the whole job, a virtual cluster or a user, and no spot label ----------

# What the columns are called where the trace of Microsoft's Philly was published again.
_SUBMIT = ("submit_time", "submitted_time", "submission_time", "arrival_time", "timestamp", "submit_s")
_DURATION = ("duration", "duration_s", "run_time", "runtime")
_END = ("end_time", "finished_time", "finish_time")
_START = ("start_time", "started_time")
_GPUS = ("num_gpus", "num_gpu", "gpu_num", "gpus", "gpu_count")
_ORGANISATION = ("vc", "virtual_cluster", "virtualcluster", "user", "tenant")


def read_helios(path: Path, options: TraceOptions | None = None) -> LoadedTrace:
    """A log of SenseTime's Helios clusters; virtual clusters are organisations."""
    names = ColumnNames("submit_time", "duration", gpus="gpu_num", organisation="vc")
    return read_plain(path, names, options)


def read_philly(path: Path, options: TraceOptions | None = None) -> LoadedTrace:
    """A table of jobs by any of the usual names; without a duration it is the time from start to end."""
    found = column_names(path)
    duration = _first(found, _DURATION)
    names = ColumnNames(
        submit=_needed(path, found, _SUBMIT, "the moment of submission"),
        duration=duration,
        end=None if duration else _needed(path, found, _END, "a duration or an end"),
        start=None if duration else _first(found, _START),
        gpus=_needed(path, found, _GPUS, "the number of GPUs"),
        organisation=_first(found, _ORGANISATION),
    )
    return read_plain(path, names, options)


def _first(found: Sequence[str], names: Sequence[str]) -> str | None:
    """The column that has one of these names, in any case."""
    by_name = {column.lower(): column for column in reversed(found)}
    return next((by_name[name] for name in names if name in by_name), None)


def _needed(path: Path, found: Sequence[str], names: Sequence[str], what: str) -> str:
    column = _first(found, names)
    if column is None:
        expected = f"no column for {what}; expected one of {', '.join(names)} among {', '.join(found)}"
        raise BadTrace(path, f"{expected}; rename it or map the columns")
    return column


# A trace file of any format known, recognised by its columns ----------------------------------------------------------

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
    if {"vc", "gpu_num", "submit_time", "duration"} <= found:
        return read_helios(path, options)
    return read_philly(path, options)


def _nodes(path: Path, nodes: Path | None, usual: str) -> Path:
    beside = nodes or path.parent / usual
    if not beside.exists():
        raise BadTrace(path, f"its list of nodes is not at {beside}; name the file that holds it")
    return beside
