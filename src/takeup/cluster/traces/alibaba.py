"""Alibaba's GPU cluster traces: v2026 (spot), v2025 (inference services) and v2023 (openb)."""

from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt

from takeup.cluster.traces.fields import Field, TraceRows, read_fields
from takeup.cluster.traces.workload import (
    JobColumns,
    LoadedTrace,
    Nodes,
    TraceOptions,
    labelled,
    load,
    nodes_of,
    skip_odd_sizes,
)
from takeup.core.arrays import Floats

# Alibaba's cluster-trace-v2026-spot-gpu: `job_info_df.csv` and `node_info_df.csv` -------------------------------------

JOBS_FILE, NODES_FILE = "job_info_df.csv", "node_info_df.csv"

_NODE_FIELDS = (Field("gpu_model", "text"), Field("gpu_capacity_num", above=0))
_JOB_FIELDS = (
    Field("organization", "text"),
    Field("gpu_model", "text"),
    Field("gpu_request", above=0),
    Field("worker_num", least=1),
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
    columns = JobColumns(
        is_spot=kind[rows.used] == "Spot",
        pool=rows["gpu_model"],
        organisation=rows["organization"],
        gpus=rows["gpu_request"],
        workers=rows["worker_num"].astype(np.int64),
        submit_s=rows["submit_time"] * unit,
        duration_s=rows["duration"] * unit,
    )
    return load("v2026", rows, columns, _read_nodes(nodes, options), options, ())


def _read_nodes(path: Path, options: TraceOptions) -> Nodes:
    rows = read_fields(path, _NODE_FIELDS, strict=options.strict)
    nodes: defaultdict[str, list[int]] = defaultdict(list)
    for model, size in zip(rows["gpu_model"].tolist(), rows["gpu_capacity_num"].tolist(), strict=True):
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
    Field("gpu_request", least=0),
    *(Field(name, default=OUTSIDE) for name in MOMENTS),
)


def read_v2025(path: Path, options: TraceOptions | None = None) -> LoadedTrace:
    """Instances with GPUs in one pool; those of `options.spot_organisations` are spot, no others."""
    options = options or TraceOptions()
    rows = read_fields(path, _FIELDS, strict=options.strict)
    rows.skip(rows.columns["gpu_request"] == 0, "asks for no GPU")
    skip_odd_sizes(rows, "gpu_request", strict=options.strict)
    created_s, lasted_s, num_open = _times(rows, options)
    services = rows["app_name"]
    is_spot, kinds = _kinds(services, options)
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


def _kinds(services: npt.NDArray[np.object_], options: TraceOptions) -> tuple[npt.NDArray[np.bool_], str]:
    if options.spot_organisations:
        return labelled(services, options)
    return np.zeros(len(services), np.bool_), "all instances are of high priority; name services that are to be spot"


# Alibaba's cluster-trace-gpu-v2023 (openb): a list of pods and a list of nodes ----------------------------------------
#
# Best-effort pods (BE) are spot jobs, all others high priority. A pod lasts from when it was scheduled until it was
# deleted; pods that were never scheduled have no known duration and are skipped. One that names several models gets the
# first that has nodes; one that names none gets a random model, in proportion to the GPUs of those on which it fits.

_OPENB_NODE_FIELDS = (Field("model", "text", default=""), Field("gpu", least=0))
_POD_FIELDS = (
    Field("num_gpu", least=0),
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
    rows.skip(gpus == 0, "asks for no GPU")
    rows.skip(rows.columns["scheduled_time"] < 0, "was never scheduled")
    lasted = rows.columns["deletion_time"] - rows.columns["scheduled_time"]
    rows.check(~(lasted > 0), "deletion_time is not after the beginning", "deletion_time", strict=options.strict)
    sizes = _read_openb_nodes(nodes, options)
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
    return np.asarray(np.where(num_gpus > 1, np.floor(num_gpus), num_gpus * np.clip(milli, 0, 1000) / 1000))


def _read_openb_nodes(path: Path, options: TraceOptions) -> Nodes:
    rows = read_fields(path, _OPENB_NODE_FIELDS, strict=options.strict)
    nodes: defaultdict[str, list[int]] = defaultdict(list)
    for model, size in zip(rows["model"].tolist(), rows["gpu"].tolist(), strict=True):
        if model and size >= 1:
            nodes[model].append(int(size))
    return {model: tuple(sizes) for model, sizes in nodes.items()}


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
