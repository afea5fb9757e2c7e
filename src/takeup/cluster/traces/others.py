"""Philly-style and Helios-style tables: GPUs of the whole job, a virtual cluster or a user, and no spot label."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from takeup.cluster.traces.loaded import LoadedTrace, TraceOptions
from takeup.cluster.traces.plain import ColumnNames, read_plain
from takeup.core.trace import column_names
from takeup.errors import BadTrace

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
