"""An application that ran, as a workload: tasks in the order of their launch, blocks with sizes and workers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean

from takeup.caching.model import Workload
from takeup.caching.traces.builder import WorkloadBuilder
from takeup.caching.traces.eventlog.events import RddPartition, SparkApplication, SparkStage, TaskRun
from takeup.caching.traces.eventlog.lineage import Lineage
from takeup.errors import BadTrace

_DEFAULT_BYTES = 1_000_000


def as_workload(application: SparkApplication, path: Path) -> tuple[Workload, tuple[str, ...]]:
    """The workload, and what was inferred or left out on the way."""
    conversion = _Conversion(application, path, WorkloadBuilder(application.name or path.name))
    for run in sorted(application.runs.values(), key=lambda run: run.task):
        conversion.add(run)
    conversion.declare_blocks()
    return conversion.builder.build(), tuple(conversion.notes())


@dataclass(slots=True)
class _Conversion:
    application: SparkApplication
    path: Path
    builder: WorkloadBuilder
    lineage: Lineage = field(default_factory=Lineage)
    homes: dict[RddPartition, str] = field(default_factory=dict)
    workers: dict[str, int] = field(default_factory=dict)
    stage_numbers: dict[int, int] = field(default_factory=dict)
    stage_of_rdd: dict[int, int] = field(default_factory=dict)
    num_without_stage: int = 0
    num_averaged: int = 0
    num_default: int = 0

    def add(self, run: TaskRun) -> None:
        """One task: it is left out when the log does not tell what its stage does."""
        stage = self.application.stages.get(run.stage)
        if stage is None or not stage.rdds:
            self.num_without_stage += 1
            return
        self._check_partition(run, stage)
        blocks = self.lineage.run(stage, run.partition)
        self.homes |= {block: self.application.stored_by.get(block, run.executor) for block in blocks.makes}
        self.builder.task(
            inputs=[block.block for block in blocks.reads],
            outputs=[block.block for block in blocks.makes],
            job=stage.job,
            stage=self._stage_number(stage),
            worker=self._worker(run.executor),
            compute_s=run.run_s,
            name=f"{run.stage}.{run.partition}",
        )

    def declare_blocks(self) -> None:
        """Declare sizes and workers of all blocks that tasks have computed."""
        if not self.homes:
            raise BadTrace(
                self.path,
                f"application {self.application.name!r} kept no RDD in memory that a finished task made, so there is "
                "nothing to cache; give the log of one that calls persist() or cache()",
            )
        averages = self._average_bytes()
        for block, executor in self.homes.items():
            self.builder.block(block.block, self._size_bytes(block, averages), self._worker(executor))

    def notes(self) -> Iterator[str]:
        """What was inferred or left out, one sentence each."""
        yield from self.lineage.guesses
        if self.application.generations:
            rdds = ", ".join(map(str, sorted(self.application.generations)))
            yield f"unpersisted during the run, which a workload cannot say, so their blocks just go unread: RDD {rdds}"
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
