"""Tasks that arrive over time: random arrival times or those of a file, and instances that have them.

In an instance with arrivals a task is released when it arrives, and its deadline counts from then on.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from takeup.core.arrays import Floats
from takeup.core.trace import TraceColumn, read_table
from takeup.edge.model import Instance
from takeup.errors import BadInput, BadTrace


def poisson_times(random: np.random.Generator, num_tasks: int, tasks_per_s: float) -> Floats:
    """When tasks arrive that come independently of each other, in seconds from now."""
    if not (np.isfinite(tasks_per_s) and tasks_per_s > 0):
        raise BadInput(f"{tasks_per_s:g} tasks per second never come, or all at once; give a finite rate above zero")
    return np.cumsum(random.exponential(1 / tasks_per_s, num_tasks))


def read_times(path: Path | str, column: str = "time_s") -> Floats:
    """The arrival times in a table (CSV, gzipped CSV, Parquet), in order, the first at zero."""
    found = np.sort(read_table(path, [TraceColumn(column, "float")])[column])
    if len(found) == 0:
        raise BadTrace(path, "has no rows; expected one for each arrival", column=column)
    times_s: Floats = found - found[0]
    return times_s


def with_arrivals(instance: Instance, times_s: Floats) -> Instance:
    """The same tasks, each arriving at its time, with as much time as before until its deadline."""
    if times_s.shape != (instance.num_devices,):
        raise BadInput(f"found {times_s.size} arrival times for {instance.num_devices} tasks; give one for each")
    windows_s = instance.deadlines_s - instance.releases_s
    return replace(instance, releases_s=times_s, deadlines_s=times_s + windows_s)
