"""Alibaba's cluster-trace-gpu-v2023 (openb): a list of pods and a list of nodes.

Best-effort pods (BE) are spot jobs, all others high priority. A pod lasts from when it was scheduled until it was
deleted; pods that were never scheduled have no known duration and are skipped. One that names several models gets the
first that has nodes; one that names none gets a random model, in proportion to the GPUs of those on which it fits.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt

from takeup.cluster.traces.fields import Field, TraceRows, read_fields
from takeup.cluster.traces.loaded import JobColumns, LoadedTrace, Nodes, TraceOptions, load
from takeup.core.arrays import Floats

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
