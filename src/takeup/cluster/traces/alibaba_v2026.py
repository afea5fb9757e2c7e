"""Alibaba's cluster-trace-v2026-spot-gpu: `job_info_df.csv` and `node_info_df.csv`."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import numpy as np

from takeup.cluster.traces.fields import Field, read_fields
from takeup.cluster.traces.loaded import JobColumns, LoadedTrace, Nodes, TraceOptions, load, skip_odd_sizes

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
