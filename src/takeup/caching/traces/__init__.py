"""Where workloads come from: trace files, Spark event logs and generators."""

from pathlib import Path

import numpy as np

from takeup.caching.model import Workload
from takeup.caching.traces.generators import WORKLOADS
from takeup.caching.traces.job_graph import read_tasks
from takeup.caching.traces.key_trace import RECORDS, TABLES, read_key_table, read_oracle_general
from takeup.caching.traces.spark_event_log import read_event_log
from takeup.core.trace import column_names
from takeup.errors import UnknownName

__all__ = ["WORKLOADS", "generate", "read_trace"]


def generate(name: str, rng: np.random.Generator) -> Workload:
    """The embedded workload of this name."""
    if name not in WORKLOADS:
        raise UnknownName("caching workload", name, WORKLOADS)
    return WORKLOADS[name](rng)


def read_trace(path: Path, *, allow_truncated: bool = False) -> tuple[Workload, tuple[str, ...]]:
    """A trace file of any kind we know, and notes on what had to be inferred.

    A table with a column `task` is a job graph, any other table and an oracleGeneral file are key traces, and what
    is neither is a Spark event log.
    """
    name = path.name.lower()
    if name.endswith(RECORDS):
        return read_oracle_general(path), ()
    if name.endswith(TABLES):
        return (read_tasks(path) if "task" in column_names(path) else read_key_table(path)), ()
    log = read_event_log(path, allow_truncated=allow_truncated)
    return log.workload, log.described
