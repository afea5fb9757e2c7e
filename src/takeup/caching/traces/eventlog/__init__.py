"""Spark event logs as workloads: which persisted partitions each task read together, their sizes, the run times.

What the log says and what is inferred. Spark writes the RDD graph of every stage, but neither the kind of a dependency
nor which partitions of a parent a partition reads, so:

- A parent that is not in the stage's own RDD list, or is read by a shuffle reader, is behind a shuffle: another
  stage has read it. All other parents are read partition by partition.
- Equal numbers of partitions: partition i reads partition i. Numbers that add up (union) or multiply (cartesian): as
  these operators number theirs. Otherwise (coalesce): neighbours go together, which Spark itself does only when it
  knows no preferred locations; this is noted.
- A task reads the nearest persisted partitions that an earlier task has computed, and computes the others. Of a
  partition that ran several times, the first success counts.
- A stage waits for the latest of its parent stages to end and, at the earliest, for whatever had ended when the
  application last was idle: a driver that waits for a result before it submits the next job leaves no other trace.
- The size of a block is that of the recorded update; else the mean of the other blocks of its RDD; else 1 MB.
- The run time of a task includes the waits of the recorded run, also for restoring evicted blocks.
- An RDD that is persisted again after `unpersist` has new blocks.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from takeup.caching.model import Workload
from takeup.caching.traces.eventlog.convert import as_workload
from takeup.caching.traces.eventlog.events import SparkApplication
from takeup.caching.traces.eventlog.files import find_log, read_lines
from takeup.errors import BadTrace


@dataclass(frozen=True, slots=True)
class EventLog:
    """The workload of one application, and in `notes` what had to be inferred or left out."""

    workload: Workload
    notes: tuple[str, ...]
    spark_version: str
    application: str


def read_event_log(path: Path | str, *, allow_truncated: bool = False) -> EventLog:
    """Read the log of one application: a file, plain or gzip, a rolling log's folder, or a folder with one log in it.

    The log of a running or killed application may end in mid-line: `allow_truncated` accepts that with a note.
    """
    log = find_log(Path(path))
    application = SparkApplication()
    for line in read_lines(log, allow_truncated=allow_truncated):
        application.add(line)
    if not application.spark_version:
        raise BadTrace(
            path, "has no SparkListenerLogStart, so it is no Spark event log; give a file that spark.eventLog.dir holds"
        )
    workload, notes = as_workload(application, log.path)
    return EventLog(workload, (*log.notes, *notes), application.spark_version, application.name)
