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
- With block updates in the log it is known which reads found their block in memory. The run time of a task that missed
  one is taken as that of the other tasks of its stage, because it includes the time to restore the block; and no task
  is taken to need more than twice the median of its stage, because the first ones start up and compile.
- `unpersist` removes the blocks of an RDD; when it is persisted again, its blocks are new ones.
"""

import re
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from statistics import fmean, median

from takeup.caching.model import Workload
from takeup.caching.traces.job_graph import WorkloadBuilder
from takeup.caching.traces.spark_events import (
    Rdd,
    RddPartition,
    SparkApplication,
    SparkStage,
    TaskRun,
    find_log,
    read_lines,
)
from takeup.errors import BadTrace

# Which persisted partitions a task reads and makes: the walk up the RDD graph of its stage ----------------------------

_SHUFFLE_READERS = frozenset(("CustomShuffledRDD", "ShuffledRDD", "ShuffledRowRDD"))
_CARTESIANS = frozenset(("CartesianRDD", "UnsafeCartesianRDD"))


@dataclass(frozen=True, slots=True)
class TaskBlocks:
    """The blocks that one task reads from the cache and stores in it."""

    reads: tuple[RddPartition, ...]
    makes: tuple[RddPartition, ...]


@dataclass(slots=True)
class Lineage:
    """Visits tasks in launch order and records the partitions computed so far."""

    guesses: dict[str, None] = field(default_factory=dict)
    _made: set[RddPartition] = field(default_factory=set)
    _relevant: dict[int, frozenset[int]] = field(default_factory=dict)

    def run(self, stage: SparkStage, partition: int) -> TaskBlocks:
        """The blocks of the task that runs this partition of the stage, depth first, parents in their order."""
        reads: list[RddPartition] = []
        makes: list[RddPartition] = []
        relevant = self._relevant_rdds(stage)
        work, seen = [(stage.own_rdd, partition)], set[tuple[int, int]]()
        while work:
            place = work.pop()
            if place in seen or place[0] not in relevant:
                continue
            seen.add(place)
            rdd = stage.rdds[place[0]]
            block = RddPartition(rdd.rdd, rdd.generation, place[1])
            if block in self._made and _is_persisted(rdd):
                reads += [block] * rdd.in_memory
                continue
            makes += [block] * _is_persisted(rdd)
            work += reversed(self._parents(rdd, place[1], stage.rdds))
        self._made.update(makes)
        return TaskBlocks(tuple(reads), tuple(block for block in makes if stage.rdds[block.rdd].in_memory))

    def _relevant_rdds(self, stage: SparkStage) -> frozenset[int]:
        """The RDDs of a stage that are persisted or have a persisted ancestor in it; parents have smaller numbers."""
        if stage.stage not in self._relevant:
            relevant: set[int] = set()
            for number, rdd in sorted(stage.rdds.items()):
                if _is_persisted(rdd) or relevant.intersection(_narrow_parents(rdd)):
                    relevant.add(number)
            self._relevant[stage.stage] = frozenset(relevant)
        return self._relevant[stage.stage]

    def _parents(self, rdd: Rdd, partition: int, rdds: Mapping[int, Rdd]) -> list[tuple[int, int]]:
        """The partitions of its parents that a partition reads without a shuffle."""
        parents = [rdds[number] for number in _narrow_parents(rdd) if number in rdds]
        counts = [parent.num_partitions for parent in parents]
        if len(parents) == 2 and rdd.name in _CARTESIANS and prod(counts) == rdd.num_partitions:
            places = zip(parents, divmod(partition, counts[1]), strict=True)
            return [(parent.rdd, place) for parent, place in places]
        if len(parents) > 1 and sum(counts) == rdd.num_partitions:
            return [_place_in_union(parents, partition)]
        return [(parent.rdd, place) for parent in parents for place in self._neighbours(rdd, parent, partition)]

    def _neighbours(self, rdd: Rdd, parent: Rdd, partition: int) -> Iterable[int]:
        """Partition i reads partition i; where the numbers differ, both are cut into equal runs of neighbours."""
        there, here = parent.num_partitions, rdd.num_partitions
        if there == here:
            return (partition,)
        self.guesses.setdefault(
            f"RDD {rdd.rdd} ({rdd.name}) has {here} partitions and its parent {parent.rdd} has {there}; "
            "neighbouring partitions are taken to go together"
        )
        first = partition * there // here
        return range(first, max(first + 1, (partition + 1) * there // here))


def _kind(rdd: Rdd) -> str:
    """What RDDs have in common that a loop makes in every round; plans hold numbers, which differ between rounds."""
    return re.sub(r"\d+", "0", f"{rdd.name}|{rdd.site}")


def _is_persisted(rdd: Rdd) -> bool:
    return rdd.in_memory or rdd.on_disk


def _narrow_parents(rdd: Rdd) -> tuple[int, ...]:
    return () if rdd.name in _SHUFFLE_READERS else rdd.parents


def _place_in_union(parents: Iterable[Rdd], partition: int) -> tuple[int, int]:
    for parent in parents:
        if partition < parent.num_partitions:
            return parent.rdd, partition
        partition -= parent.num_partitions
    raise AssertionError("the partitions of the parents add up to those of the union")


# An application that ran, as a workload: tasks in the order of their launch, blocks with sizes and workers ------------

_DEFAULT_BYTES = 1_000_000
LONGEST = 2.0  # times the median of its stage: what a task took longer was spent on something else, such as compiling


@dataclass(frozen=True, slots=True)
class _LoggedTask:
    """One task of the log: when it started, the blocks it read and made, and which of its reads were missed."""

    run: TaskRun
    stage: SparkStage
    started_at: int
    blocks: TaskBlocks
    missed: tuple[RddPartition, ...]


@dataclass(slots=True)
class _Conversion:
    application: SparkApplication
    path: Path
    builder: WorkloadBuilder
    lineage: Lineage = field(default_factory=Lineage)
    homes: dict[RddPartition, str] = field(default_factory=dict)
    spills: dict[RddPartition, bool] = field(default_factory=dict)
    made_in_s: dict[RddPartition, float] = field(default_factory=dict)
    made_of: dict[tuple[int, int], list[RddPartition]] = field(default_factory=dict)
    kind_of: dict[tuple[int, int], str] = field(default_factory=dict)
    workers: dict[str, int] = field(default_factory=dict)
    stage_numbers: dict[int, int] = field(default_factory=dict)
    stage_of_rdd: dict[int, int] = field(default_factory=dict)
    num_reads: int = 0
    num_found: int = 0
    num_without_stage: int = 0
    num_averaged: int = 0
    num_default: int = 0

    def convert(self) -> Workload:
        """The tasks in the order in which they were launched, and blocks with sizes and workers."""
        runs = sorted(self.application.runs.values(), key=lambda run: run.task)
        tasks = [task for task in map(self._follow, runs) if task is not None]
        complete_s = self._median_s(task for task in tasks if not task.missed)
        ends = deque(self.application.unpersisted)
        for task in tasks:
            while ends and ends[0][0] < task.started_at:
                self._drop(*ends.popleft()[1:])
            self._add(task, complete_s.get(task.stage.stage))
        self.declare_blocks()
        return self.builder.build()

    def _follow(self, run: TaskRun) -> _LoggedTask | None:
        """What the task read and made; None when the log does not tell what its stage does."""
        stage = self.application.stages.get(run.stage)
        if stage is None or not stage.rdds:
            self.num_without_stage += 1
            return None
        self._check_partition(run, stage)
        blocks = self.lineage.run(stage, run.partition)
        started_at = self.application.starts.get(run.task)
        if started_at is None or not self.application.residence:
            return _LoggedTask(run, stage, started_at or stage.submitted_at, blocks, ())
        missed = tuple(block for block in blocks.reads if not self.application.was_in_memory(block, started_at))
        self.num_reads += len(blocks.reads)
        self.num_found += len(blocks.reads) - len(missed)
        return _LoggedTask(run, stage, started_at, blocks, missed)

    def _add(self, task: _LoggedTask, complete_s: float | None) -> None:
        run, blocks = task.run, task.blocks
        compute_s = self._compute_s(task, complete_s)
        for block in blocks.makes:
            self.homes[block] = self.application.stored_by.get(block, run.executor)
            self.spills[block] = task.stage.rdds[block.rdd].on_disk
            self.made_in_s[block] = compute_s
            self.made_of.setdefault((block.rdd, block.generation), []).append(block)
            self.kind_of.setdefault((block.rdd, block.generation), _kind(task.stage.rdds[block.rdd]))
        self.builder.task(
            inputs=[block.block for block in blocks.reads],
            outputs=[block.block for block in blocks.makes],
            job=task.stage.job,
            stage=self._stage_number(task.stage),
            worker=self._worker(run.executor),
            compute_s=compute_s,
            name=f"{run.stage}.{run.partition}",
        )

    def _median_s(self, tasks: Iterable[_LoggedTask]) -> dict[int, float]:
        """By stage, the median run time of these tasks."""
        times_s: dict[int, list[float]] = {}
        for task in tasks:
            times_s.setdefault(task.stage.stage, []).append(task.run.run_s)
        return {stage: median(times) for stage, times in times_s.items()}

    def _compute_s(self, task: _LoggedTask, complete_s: float | None) -> float:
        """The run time without the time to restore what was missed, and without that to start up and compile."""
        if complete_s is not None:
            return min(task.run.run_s, complete_s if task.missed else LONGEST * complete_s)
        restored_s = sum(self.made_in_s[block] for block in task.missed if not self.spills[block])
        return max(0.0, task.run.run_s - restored_s)

    def _drop(self, rdd: int, generation: int) -> None:
        for block in self.made_of.get((rdd, generation), ()):
            self.builder.drop(block.block)

    def declare_blocks(self) -> None:
        """Declare sizes and workers of all blocks that tasks have computed."""
        if not self.homes:
            raise BadTrace(
                self.path,
                f"application {self.application.name!r} kept no RDD in memory that a finished task made, so there is "
                "nothing to cache; give the log of one that calls persist() or cache()",
            )
        averages, datasets = self._average_bytes(), dict[tuple[int, int], int]()
        for block, executor in self.homes.items():
            dataset = datasets.setdefault((block.rdd, block.generation), len(datasets))
            worker, size_bytes = self._worker(executor), self._size_bytes(block, averages)
            self.builder.block(block.block, size_bytes, worker, dataset=dataset, spills=self.spills[block])

    def notes(self) -> Iterator[str]:
        """What was inferred or left out, one sentence each."""
        yield from self.lineage.guesses
        counted = {
            "blocks without a recorded size, taken as the average of their RDD": self.num_averaged,
            f"blocks without a recorded size, taken as {_DEFAULT_BYTES} bytes (next time set "
            "spark.eventLog.logBlockUpdates.enabled=true)": self.num_default,
            "times a block left memory, so run times may hold the wait for its return": self.application.num_dropped,
            "task attempts left out because they failed or repeated a partition": self.application.num_left_out,
            "tasks left out because the log does not hold the start of their stage": self.num_without_stage,
        }
        yield from (f"{what}: {count}" for what, count in counted.items() if count)

    # ----------------------------------------------------------------------------------------------------------------

    def _check_partition(self, run: TaskRun, stage: SparkStage) -> None:
        num_partitions = stage.rdds[stage.own_rdd].num_partitions
        if not 0 <= run.partition < num_partitions:
            raise BadTrace(
                self.path,
                f"task {run.task} ran partition {run.partition} of stage {run.stage}, which has {num_partitions}; "
                "the log is damaged, copy it again",
            )

    def _stage_number(self, stage: SparkStage) -> int:
        if stage.stage not in self.stage_numbers:
            self.stage_numbers[stage.stage] = self.builder.stage(self._after(stage))
            self.stage_of_rdd[stage.own_rdd] = stage.stage
        return self.stage_numbers[stage.stage]

    def _after(self, stage: SparkStage) -> int:
        """The stage that ends last of all this one waits for."""
        waits_for = [self._that_ran(parent) for parent in stage.parents] + [stage.waits_for]
        known = [number for number in waits_for if number in self.stage_numbers]
        latest = max(known, key=lambda number: self.application.stages[number].ended, default=None)
        return -1 if latest is None else self.stage_numbers[latest]

    def _that_ran(self, stage: int) -> int | None:
        """A stage is skipped when an earlier job has run the same: then that one is waited for."""
        if stage in self.stage_numbers or stage not in self.application.stages:
            return stage
        return self.stage_of_rdd.get(self.application.stages[stage].own_rdd)

    def _worker(self, executor: str) -> int:
        return self.workers.setdefault(executor, len(self.workers))

    def _average_bytes(self) -> dict[int, float]:
        """Of every RDD the average of its blocks whose size was recorded."""
        sizes: dict[int, list[int]] = {}
        for recorded in (self.application.memory_bytes, self.application.disk_bytes):
            for block, size_bytes in recorded.items():
                sizes.setdefault(block.rdd, []).append(size_bytes)
        return self.application.mean_bytes | {rdd: fmean(known) for rdd, known in sizes.items()}

    def _size_bytes(self, block: RddPartition, averages: dict[int, float]) -> int:
        recorded = self.application.memory_bytes.get(block) or self.application.disk_bytes.get(block)
        if recorded:
            return recorded
        if block.rdd in averages:
            self.num_averaged += 1
            return max(1, round(averages[block.rdd]))
        self.num_default += 1
        return _DEFAULT_BYTES


@dataclass(frozen=True, slots=True)
class EventLog:
    """The workload of one application, in `notes` what had to be inferred or left out, and how it ran.

    `pool_bytes` is the memory that its executors had for blocks and for execution, `num_slots` how many tasks ran at
    the same time in one executor, `execution_bytes` the most that one task used, `kinds` what the datasets have in
    common with those of other rounds of a loop. Of the `num_reads` whose block had
    been made before, `num_found` found it in memory. Zeros mean that the log does not say.
    """

    workload: Workload
    notes: tuple[str, ...]
    spark_version: str
    application: str
    pool_bytes: int
    num_slots: int
    execution_bytes: int
    num_reads: int
    num_found: int
    kinds: tuple[str, ...]

    @property
    def described(self) -> tuple[str, ...]:
        """The application and the notes on it."""
        return f"Spark {self.spark_version}, application {self.application!r}", *self.notes


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
    conversion = _Conversion(application, log.path, WorkloadBuilder(application.name or log.path.name))
    workload = conversion.convert()
    return EventLog(
        workload,
        (*log.notes, *conversion.notes()),
        application.spark_version,
        application.name,
        sum(application.pool_bytes.get(executor, 0) for executor in conversion.workers),
        application.num_slots,
        application.execution_bytes,
        conversion.num_reads,
        conversion.num_found,
        tuple(conversion.kind_of.values()),
    )
