"""A trace file of any format known, recognised by its columns."""

from __future__ import annotations

from pathlib import Path

from takeup.cluster.traces.alibaba_v2025 import read_v2025
from takeup.cluster.traces.alibaba_v2026 import JOBS_FILE, NODES_FILE, read_v2026
from takeup.cluster.traces.loaded import LoadedTrace, TraceOptions
from takeup.cluster.traces.openb import read_openb
from takeup.cluster.traces.others import read_helios, read_philly
from takeup.core.trace import column_names
from takeup.errors import BadInput, BadTrace

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
