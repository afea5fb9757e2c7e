"""Job graphs: build a `Workload` from named objects, or read and write one as a table with a row for every task."""

import math
from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np

from takeup.caching.model import Workload
from takeup.core.arrays import Ints
from takeup.core.limits import MOST_COUNT, MOST_SIZE_BYTES
from takeup.core.trace import TraceColumn, read_table
from takeup.errors import BadInput, BadTrace

# Build a workload: declare blocks, stages and tasks, then `build` -----------------------------------------------------
#
# Blocks are numbered in the order in which they are first mentioned, stages and tasks in the order in which they are
# added, which is that in which they run: the producer of a block before its readers.

_OF_ITS_BLOCKS = -1


@dataclass(slots=True)
class _Lists:
    """Blocks of every task, one after the other: those of task t lie at `starts[t]:starts[t + 1]`."""

    starts: list[int] = field(default_factory=lambda: [0])
    blocks: list[int] = field(default_factory=list)

    def append(self, blocks: Iterable[int]) -> None:
        self.blocks.extend(blocks)
        self.starts.append(len(self.blocks))

    def first(self, task: int) -> int | None:
        return self.blocks[self.starts[task]] if self.starts[task] < self.starts[task + 1] else None

    def arrays(self) -> tuple[Ints, Ints]:
        """Starts and blocks as arrays."""
        return np.array(self.starts, np.int64), np.array(self.blocks, np.int64)


class WorkloadBuilder:
    """Collects blocks, stages and tasks; `build` checks them and lays them out as a `Workload`."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._block_numbers: dict[Hashable, int] = {}
        self._block_facts: dict[int, tuple[int, int]] = {}
        self._traits: dict[int, tuple[int, bool]] = {}
        self._drops: dict[int, int] = {}
        self._stage_after: list[int] = []
        self._tasks: list[tuple[int, int, int, float]] = []
        self._task_names: dict[int, str] = {}
        self._inputs = _Lists()
        self._outputs = _Lists()

    def block(
        self, name: Hashable, size_bytes: int, worker: int = 0, *, dataset: int = -1, spills: bool = False
    ) -> int:
        """Declare a block and the worker it lives on; returns its number. Idempotent for equal arguments.

        `dataset` is the number of what it is a part of, such as an RDD; `spills`: its storage level has a disk.
        """
        number = self._block_number(name)
        self._traits[number] = (dataset, spills)
        before = self._block_facts.setdefault(number, (size_bytes, worker))
        if before != (size_bytes, worker):
            raise BadInput(
                f"block {name!r} is declared as {before[0]} bytes on worker {before[1]} and as {size_bytes} bytes "
                f"on worker {worker}; declare it once, or give the second one a name of its own"
            )
        return number

    def drop(self, name: Hashable) -> None:
        """The engine removes the block before the task that is added next, or after its last reader."""
        self._drops[self._block_number(name)] = len(self._tasks)

    def stage(self, after: int = -1) -> int:
        """Add a stage that begins when stage `after` has ended (-1: at once); returns its number."""
        self._stage_after.append(after)
        return len(self._stage_after) - 1

    def task(
        self,
        *,
        inputs: Iterable[Hashable] = (),
        outputs: Iterable[Hashable] = (),
        job: int = 0,
        stage: int | None = None,
        worker: int | None = None,
        compute_s: float = 0.0,
        name: str | None = None,
    ) -> int:
        """Add a task; returns its number.

        Without `stage` it gets a new stage without predecessor; without `worker` it runs where its first input lives,
        else where its first output lives, else on worker 0.
        """
        number = len(self._tasks)
        if name is not None:
            self._task_names[number] = name
        if worker is not None and worker < 0:
            raise BadInput(f"{self._say(number)} runs on worker {worker}; number the workers from 0")
        if stage is None:
            stage = self.stage()
        self._tasks.append((job, stage, _OF_ITS_BLOCKS if worker is None else worker, compute_s))
        self._inputs.append(dict.fromkeys(map(self._block_number, inputs)))
        self._outputs.append(dict.fromkeys(map(self._block_number, outputs)))
        return number

    def build(self) -> Workload:
        """The workload; raises `BadInput` for the first inconsistency."""
        self._check_blocks()
        self._check_stages()
        self._check_tasks()
        input_starts, input_blocks = self._inputs.arrays()
        output_starts, output_blocks = self._outputs.arrays()
        producers = self._producers(output_starts, output_blocks)
        self._check_order(np.repeat(np.arange(len(self._tasks)), np.diff(input_starts)), input_blocks, producers)
        facts = [self._block_facts[number] for number in range(len(self._block_numbers))]
        jobs, stages, _, compute_s = zip(*self._tasks, strict=True) if self._tasks else ((), (), (), ())
        return Workload(
            name=self.name,
            block_bytes=np.array([size_bytes for size_bytes, _ in facts], np.int64),
            block_worker=np.array([worker for _, worker in facts], np.int64),
            block_producer=producers,
            task_job=np.array(jobs, np.int64),
            task_stage=np.array(stages, np.int64),
            task_worker=np.array([self._worker(task) for task in range(len(self._tasks))], np.int64),
            task_compute_s=np.array(compute_s, np.float64),
            input_starts=input_starts,
            input_blocks=input_blocks,
            output_starts=output_starts,
            output_blocks=output_blocks,
            stage_after=np.array(self._stage_after, np.int64),
            block_dataset=np.array([self._traits[number][0] for number in range(len(facts))], np.int64),
            block_spills=np.array([self._traits[number][1] for number in range(len(facts))], np.bool_),
            block_ends=self._ends(input_starts, input_blocks),
        )

    # What may not be ------------------------------------------------------------------------------------------------

    def _check_blocks(self) -> None:
        names = list(self._block_numbers)
        for number, (size_bytes, worker) in self._block_facts.items():
            if not 0 < size_bytes <= MOST_SIZE_BYTES:
                raise BadInput(
                    f"block {names[number]!r} has {size_bytes} bytes; give every block a size of at least one byte"
                )
            if not 0 <= worker < MOST_COUNT:
                raise BadInput(f"block {names[number]!r} lives on worker {worker}; number the workers from 0")
        if len(self._block_facts) < len(names):
            number = next(number for number in range(len(names)) if number not in self._block_facts)
            raise BadInput(self._unknown_block(number, names[number]))

    def _unknown_block(self, number: int, name: Hashable) -> str:
        for verb, lists in (("reads", self._inputs), ("writes", self._outputs)):
            if number in lists.blocks:
                task = int(np.searchsorted(lists.starts, lists.blocks.index(number), side="right")) - 1
                return f"{self._say(task)} {verb} block {name!r}, which has no size; declare the block with its size"
        raise AssertionError("a number is given to a block only when it is declared, read or written")

    def _check_stages(self) -> None:
        for stage, after in enumerate(self._stage_after):
            if not -1 <= after < stage:
                raise BadInput(
                    f"stage {stage} waits for stage {after}, which is not an earlier one; "
                    "add the stage it waits for first, or use -1 for none"
                )

    def _check_tasks(self) -> None:
        num_stages = len(self._stage_after)
        for task, (_, stage, _, compute_s) in enumerate(self._tasks):
            if not (0 <= compute_s < math.inf):
                raise BadInput(f"{self._say(task)} computes for {compute_s} seconds; give a finite time of at least 0")
            if not 0 <= stage < num_stages:
                raise BadInput(
                    f"{self._say(task)} is in stage {stage}, but there are {num_stages} stages; add it with stage()"
                )
        if len(set(self._outputs.blocks)) < len(self._outputs.blocks):
            raise BadInput(self._two_producers())

    def _two_producers(self) -> str:
        producer: dict[int, int] = {}
        for task in range(len(self._tasks)):
            for block in self._outputs.blocks[self._outputs.starts[task] : self._outputs.starts[task + 1]]:
                if producer.setdefault(block, task) != task:
                    name, both = list(self._block_numbers)[block], f"{self._say(producer[block])} and {self._say(task)}"
                    return f"block {name!r} is written by {both}, but a block has one producer; rename one of the two"
        raise AssertionError("called only when some block is written twice")

    def _check_order(self, readers: Ints, blocks: Ints, producers: Ints) -> None:
        for place in np.flatnonzero(producers[blocks] >= readers)[:1].tolist():
            reader, producer = int(readers[place]), int(producers[blocks[place]])
            name = list(self._block_numbers)[int(blocks[place])]
            raise BadInput(
                f"{self._say(reader)} reads block {name!r}, which {self._say(producer)} writes only then; "
                "give the tasks in the order in which they run"
            )

    # ----------------------------------------------------------------------------------------------------------------

    def _producers(self, output_starts: Ints, output_blocks: Ints) -> Ints:
        producers = np.full(len(self._block_numbers), -1, np.int64)
        producers[output_blocks] = np.repeat(np.arange(len(self._tasks)), np.diff(output_starts))
        return producers

    def _ends(self, input_starts: Ints, input_blocks: Ints) -> Ints:
        """Before which task each block is removed: the one after its `drop`, in any case after its last reader."""
        num_tasks = len(self._tasks)
        ends = np.array([self._drops.get(number, num_tasks) for number in range(len(self._block_numbers))], np.int64)
        np.maximum.at(ends, input_blocks, 1 + np.repeat(np.arange(num_tasks), np.diff(input_starts)))
        return ends

    def _block_number(self, name: Hashable) -> int:
        return self._block_numbers.setdefault(name, len(self._block_numbers))

    def _worker(self, task: int) -> int:
        worker = self._tasks[task][2]
        if worker != _OF_ITS_BLOCKS:
            return worker
        block = self._inputs.first(task)
        block = self._outputs.first(task) if block is None else block
        return 0 if block is None else self._block_facts[block][1]

    def _say(self, task: int) -> str:
        return f"task {self._task_names[task]!r}" if task in self._task_names else f"task {task}"


# Job graphs as a table: a row for every task says what it reads and writes, where it runs and how long it computes ----
#
# The columns are described in docs/guides/bring-your-own-trace.md. A row without a task declares source data.

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
    for number, row in enumerate(rows):
        if row.worker >= MOST_COUNT:
            raise _RowLocation(path, number).error(f"{row.worker} is beyond {MOST_COUNT - 1}; correct it", "worker")
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
        if not (word.isascii() and word.isdigit() and len(word) <= 19 and least <= int(word) <= MOST_SIZE_BYTES):
            raise spot.error(f"{word[:40]!r} is not a whole number of at least {least}; correct it", column)
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
