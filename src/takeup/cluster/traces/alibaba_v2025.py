"""Alibaba's cluster-trace-gpu-v2025: instances of inference services, all of high priority; services are organisations.

An empty moment lies outside the trace. An instance without a creation was there when it began, one without a deletion
when it ended, and is taken to end with it. Parts of services that ask for no GPU are left out.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt

from takeup.cluster.traces.fields import Field, TraceRows, read_fields
from takeup.cluster.traces.loaded import JobColumns, LoadedTrace, TraceOptions, labelled, load, nodes_of, skip_odd_sizes
from takeup.core.arrays import Floats

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
