"""Job-DAG traces as a table, one row for every task: what it reads, what it writes, where and for how long it computes.

Columns (CSV, gzipped CSV or Parquet; all but the first and those about blocks may be missing):

    task           its name; a row without one is no task but declares source data that lies on disk from the start
    job            number of the job, 0 if empty
    stage          number of the stage; a task without one is a separate stage
    after          number of the smaller stage that ends before this one begins; the same in all rows of a stage
    worker         where it runs, 0 if empty
    compute_s      seconds, 0 if empty
    inputs         names of the blocks it reads, separated by spaces
    outputs        names of the blocks it writes; every block that is read is an output of one row
    output_bytes   their sizes, as many as outputs
    output_workers where they live, as many as outputs; empty if they live where the task runs
"""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from takeup.caching.model import Workload
from takeup.caching.traces.builder import WorkloadBuilder
from takeup.core.trace import TraceColumn, read_table, write_table
from takeup.errors import BadInput, BadTrace

_NONE = -1
_COLUMNS = (
    TraceColumn("task", "text", required=False),
    TraceColumn("job", "int", required=False, default=0),
    TraceColumn("stage", "int", required=False, default=_NONE, minimum=_NONE),
    TraceColumn("after", "int", required=False, default=_NONE, minimum=_NONE),
    TraceColumn("worker", "int", required=False, default=0, minimum=0),
    TraceColumn("compute_s", "float", required=False, default=0.0, minimum=0),
    TraceColumn("inputs", "text", required=False),
    TraceColumn("outputs", "text", required=False),
    TraceColumn("output_bytes", "text", required=False),
    TraceColumn("output_workers", "text", required=False),
)


class _TaskRow(NamedTuple):
    """One row of the file; the fields are the columns, in their order."""

    task: str
    job: int
    stage: int
    after: int
    worker: int
    compute_s: float
    inputs: str
    outputs: str
    output_bytes: str
    output_workers: str


class _RowLocation(NamedTuple):
    """The location of a row, for errors."""

    path: Path
    row: int

    def error(self, problem: str, column: str) -> BadTrace:
        if self.path.name.endswith(".parquet"):
            return BadTrace(self.path, f"row {self.row + 1}: {problem}", column=column)
        return BadTrace(self.path, problem, line=self.row + 2, column=column)


def read_tasks(path: Path | str) -> Workload:
    """The workload of a task table, under the name of the file."""
    path = Path(path)
    table = read_table(path, _COLUMNS)
    rows = [_TaskRow(*cells) for cells in zip(*(table[column.name].tolist() for column in _COLUMNS), strict=True)]
    if not any(row.task for row in rows):
        raise BadTrace(path, "names no task; give every task a row with its name in column 'task'")
    builder = WorkloadBuilder(path.name.partition(".")[0])
    _add_blocks(builder, path, rows)
    stages = _add_stages(builder, path, rows)
    for row in rows:
        if row.task:
            builder.task(
                inputs=row.inputs.split(),
                outputs=row.outputs.split(),
                job=row.job,
                stage=stages.get(row.stage),
                worker=row.worker,
                compute_s=row.compute_s,
                name=row.task,
            )
    try:
        return builder.build()
    except BadInput as error:
        raise BadTrace(path, str(error)) from error


def write_tasks(path: Path | str, workload: Workload) -> None:
    """Write a workload as a task table. Its blocks are named by their numbers, stages without tasks are left out."""
    if not workload.num_tasks:
        raise BadInput(f"workload {workload.name!r} has no task to write to {path}; add one")
    rows = [*_source_rows(workload), *_task_rows(workload)]
    columns = zip(*rows, strict=True)
    kinds = {"int": np.int64, "float": np.float64, "text": object}
    write_table(
        path,
        {column.name: np.array(cells, kinds[column.kind]) for column, cells in zip(_COLUMNS, columns, strict=True)},
    )


# Reading --------------------------------------------------------------------------------------------------------------


def _add_blocks(builder: WorkloadBuilder, path: Path, rows: list[_TaskRow]) -> None:
    written: set[str] = set()
    for number, row in enumerate(rows):
        for name, size_bytes, worker in _blocks(row, _RowLocation(path, number)):
            try:
                builder.block(name, size_bytes, worker)
            except BadInput as error:
                raise _RowLocation(path, number).error(str(error), "outputs") from error
            written.add(name)
    for number, row in enumerate(rows):
        for name in row.inputs.split():
            if name not in written:
                problem = (
                    f"block {name!r} is no output of any row; add a row that writes it or declares it as source data"
                )
                raise _RowLocation(path, number).error(problem, "inputs")
        if row.inputs and not row.task:
            raise _RowLocation(path, number).error(
                "a row with inputs needs the name of its task, this one has none", "task"
            )


def _blocks(row: _TaskRow, spot: _RowLocation) -> Iterator[tuple[str, int, int]]:
    """Name, size and worker of every output of a row."""
    names = row.outputs.split()
    sizes_bytes = _numbers(row.output_bytes, len(names), spot, "output_bytes", least=1)
    workers = [row.worker] * len(names)
    if row.output_workers:
        workers = _numbers(row.output_workers, len(names), spot, "output_workers", least=0)
    return zip(names, sizes_bytes, workers, strict=True)


def _numbers(cell: str, expected: int, spot: _RowLocation, column: str, least: int) -> list[int]:
    words = cell.split()
    if len(words) != expected:
        raise spot.error(f"found {len(words)} numbers for {expected} outputs; give one for each", column)
    for word in words:
        if not (word.isascii() and word.isdigit() and least <= int(word) < 2**63):
            raise spot.error(f"{word!r} is not a whole number of at least {least}; correct it", column)
    return [int(word) for word in words]


def _add_stages(builder: WorkloadBuilder, path: Path, rows: list[_TaskRow]) -> dict[int, int]:
    """Stages in the order of their numbers in the file."""
    after: dict[int, int] = {}
    for number, row in enumerate(rows):
        if row.stage != _NONE and row.task and after.setdefault(row.stage, row.after) != row.after:
            problem = f"stage {row.stage} waits for {row.after} here and for {after[row.stage]} above; give it one"
            raise _RowLocation(path, number).error(problem, "after")
    stages: dict[int, int] = {}
    for stage in sorted(after):
        if after[stage] != _NONE and after[stage] not in stages:
            problem = f"stage {stage} waits for stage {after[stage]}, which is no smaller number with a task"
            raise BadTrace(path, f"{problem}; number stages in the order in which they run", column="after")
        stages[stage] = builder.stage(stages.get(after[stage], _NONE))
    return stages


# Writing --------------------------------------------------------------------------------------------------------------


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
