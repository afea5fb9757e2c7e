"""Workloads as task tables, so that tests can read back what they wrote."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from support.trace_tables import write_table
from takeup.caching.model import Workload
from takeup.caching.traces.job_graph import _COLUMNS, _NONE, _TaskRow


def write_tasks(path: Path, workload: Workload) -> None:
    """Write a workload as a task table. Its blocks are named by their numbers, stages without tasks are left out."""
    rows = [*_source_rows(workload), *_task_rows(workload)]
    columns = zip(*rows, strict=True)
    kinds = {"int": np.int64, "float": np.float64, "text": object}
    write_table(
        path,
        {column.name: np.array(cells, kinds[column.kind]) for column, cells in zip(_COLUMNS, columns, strict=True)},
    )


def _source_rows(workload: Workload) -> Iterator[_TaskRow]:
    for block in np.flatnonzero(workload.block_producer == _NONE).tolist():
        size_bytes, worker = int(workload.block_bytes[block]), int(workload.block_worker[block])
        yield _TaskRow("", 0, _NONE, _NONE, worker, 0.0, "", f"b{block}", str(size_bytes), "")


def _task_rows(workload: Workload) -> Iterator[_TaskRow]:
    after = _after_with_tasks(workload)
    for task in workload.tasks():
        outputs = list(task.outputs)
        workers = workload.block_worker[outputs].tolist()
        yield _TaskRow(
            task=f"t{task.index}",
            job=task.job,
            stage=task.stage,
            after=after[task.stage],
            worker=task.worker,
            compute_s=task.compute_s,
            inputs=_words(f"b{block}" for block in task.inputs),
            outputs=_words(f"b{block}" for block in outputs),
            output_bytes=_words(map(str, workload.block_bytes[outputs].tolist())),
            output_workers="" if all(worker == task.worker for worker in workers) else _words(map(str, workers)),
        )


def _after_with_tasks(workload: Workload) -> list[int]:
    """For every stage the nearest one before it that has a task."""
    has_task = np.zeros(len(workload.stage_after), np.bool_)
    has_task[workload.task_stage] = True
    nearest: list[int] = []
    for after in workload.stage_after.tolist():
        nearest.append(after if after == _NONE or has_task[after] else nearest[after])
    return nearest


def _words(words: Iterator[str]) -> str:
    return " ".join(words)
