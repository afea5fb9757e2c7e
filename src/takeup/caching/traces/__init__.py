"""Where workloads come from: trace files, Spark event logs and generators."""

from pathlib import Path

import numpy as np

from takeup.caching.model import Workload
from takeup.caching.traces.generators import WORKLOADS
from takeup.caching.traces.job_graph import read_tasks
from takeup.caching.traces.spark_event_log import read_event_log
from takeup.errors import UnknownName

__all__ = ["WORKLOADS", "generate", "read_trace"]

TABLES = (".csv", ".csv.gz", ".parquet")


def generate(name: str, seed: int | np.random.Generator) -> Workload:
    """The embedded workload of this name."""
    if name not in WORKLOADS:
        raise UnknownName("caching workload", name, WORKLOADS)
    return WORKLOADS[name](np.random.default_rng(seed))


def read_trace(path: Path, *, allow_truncated: bool = False) -> tuple[Workload, tuple[str, ...]]:
    """A job graph, if this is a table, or else a Spark event log; and notes on what had to be inferred."""
    if path.name.lower().endswith(TABLES):
        return read_tasks(path), ()
    log = read_event_log(path, allow_truncated=allow_truncated)
    return log.workload, log.described
