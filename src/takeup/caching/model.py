"""The data model of caching: blocks, tasks that read them together, the decision to evict, and the Result of a run.

A *block* is a piece of intermediate data. A *task* reads its input blocks together and writes its output blocks; it
is the *consumer* of its inputs. A `Workload` is everything an application does, as flat arrays: what one task reads is
`input_blocks[input_starts[task]:input_starts[task + 1]]`, so that millions of accesses fit in memory and in a kernel.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from takeup.core.arrays import Floats, Ints
from takeup.core.report import Reported
from takeup.errors import BadInput

BlockId = Hashable
ConsumerId = Hashable
CostModel = Literal["additive", "all-or-nothing"]
Miss = Literal["disk", "recompute", "level"]
Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Evict:
    """Drop this block from memory now."""

    block: BlockId
    reason: str


@dataclass(frozen=True, slots=True)
class AdmissionDecision:
    """The decision on an incoming block: its victims, and whether it is admitted at all."""

    evict: tuple[Evict, ...]
    admit: bool
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Task:
    """One consumer: it reads `inputs` together, computes, and writes `outputs`."""

    index: int
    job: int
    stage: int
    worker: int
    compute_s: float
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Workload:
    """All blocks and tasks of an application, tasks in the order in which the engine runs them.

    A block without a producer is on disk from the start. `stage_after[s]` is the stage that must end before stage
    `s` begins, or -1. Blocks of one dataset, such as the partitions of an RDD, have the same number in `block_dataset`;
    -1 is none. `block_spills`: the storage level of the block lets it move to disk. `block_ends`: the engine removes
    the block before this task (`unpersist`); `num_tasks` is never.
    """

    name: str
    block_bytes: Ints
    block_worker: Ints
    block_producer: Ints
    task_job: Ints
    task_stage: Ints
    task_worker: Ints
    task_compute_s: Floats
    input_starts: Ints
    input_blocks: Ints
    output_starts: Ints
    output_blocks: Ints
    stage_after: Ints
    block_dataset: Ints
    block_spills: Bools
    block_ends: Ints

    @property
    def num_blocks(self) -> int:
        return len(self.block_bytes)

    @property
    def num_tasks(self) -> int:
        return len(self.task_job)

    @property
    def num_workers(self) -> int:
        return 1 + int(max(self.block_worker.max(initial=0), self.task_worker.max(initial=0)))

    @property
    def num_accesses(self) -> int:
        return len(self.input_blocks)

    @property
    def working_set_bytes(self) -> int:
        """Bytes of the blocks that exist at the same time, at most: what a cache that never evicts would hold."""
        live_bytes = np.zeros(self.num_tasks + 1, np.int64)
        np.add.at(live_bytes, np.maximum(self.block_producer, 0), self.block_bytes)
        np.subtract.at(live_bytes, self.block_ends, np.where(self.block_ends < self.num_tasks, self.block_bytes, 0))
        return int(np.cumsum(live_bytes).max())

    def recomputes(self, miss: Miss) -> Bools:
        """Which blocks are computed again after a loss; the others are read back from disk."""
        kept = {"disk": np.ones_like(self.block_spills), "recompute": np.zeros_like(self.block_spills)}
        return (self.block_producer >= 0) & ~kept.get(miss, self.block_spills)

    def inputs(self, task: int) -> tuple[int, ...]:
        return tuple(self.input_blocks[self.input_starts[task] : self.input_starts[task + 1]].tolist())

    def outputs(self, task: int) -> tuple[int, ...]:
        return tuple(self.output_blocks[self.output_starts[task] : self.output_starts[task + 1]].tolist())

    def tasks(self) -> Iterator[Task]:
        columns = zip(
            self.task_job.tolist(),
            self.task_stage.tolist(),
            self.task_worker.tolist(),
            self.task_compute_s.tolist(),
            strict=True,
        )
        for index, (job, stage, worker, compute_s) in enumerate(columns):
            yield Task(index, job, stage, worker, compute_s, self.inputs(index), self.outputs(index))

    def tasks_by_job(self) -> dict[int, list[Task]]:
        jobs: dict[int, list[Task]] = {}
        for task in self.tasks():
            jobs.setdefault(task.job, []).append(task)
        return jobs

    def ending_before(self) -> dict[int, list[int]]:
        """By task, the blocks that the engine removes before it runs."""
        ending: dict[int, list[int]] = {}
        for block in np.flatnonzero(self.block_ends < self.num_tasks).tolist():
            ending.setdefault(int(self.block_ends[block]), []).append(block)
        return ending

    def positions_bytes(self) -> Ints:
        """How many bytes the engine touches before each task: the distance scale of `furthest_next_use` and `dag`."""
        touched = np.zeros(self.num_tasks + 1, np.int64)
        for starts, blocks in ((self.input_starts, self.input_blocks), (self.output_starts, self.output_blocks)):
            running = np.concatenate(([0], np.cumsum(self.block_bytes[blocks])))
            touched[1:] += np.diff(running[starts])
        return np.cumsum(touched)[:-1]


@dataclass(frozen=True, slots=True)
class EngineModel:
    """How the simulated engine behaves: memory, what a miss costs, and how much of the future it has announced.

    `miss`: a lost block is read back from `disk`, `recompute`d from its lineage, or, with `level`, whichever of the two
    its storage level says. `cost_model`: several missing inputs
    are paid one after the other, at once, or as if none had been there. `profile`: the consumers of a job are known
    when it starts (`online`) or all from the beginning, as for an application that ran before (`recurring`).
    """

    capacity_bytes: int
    miss: Miss = "disk"
    cost_model: CostModel = "additive"
    profile: Literal["online", "recurring"] = "recurring"
    disk_bytes_per_s: float = 100e6

    def __post_init__(self) -> None:
        if self.capacity_bytes <= 0:
            raise BadInput(f"a cache of {self.capacity_bytes} bytes holds nothing; give a capacity above zero")
        if not self.disk_bytes_per_s > 0:  # also for nan
            raise BadInput(f"disk_bytes_per_s is {self.disk_bytes_per_s:g}; give a bandwidth above zero")


@dataclass(frozen=True, slots=True)
class CachingResult(Reported):
    """What one run under one policy did. Shares are of block accesses unless named otherwise."""

    policy: str
    workload: str
    capacity_bytes: int
    num_accesses: int
    num_hits: int
    num_effective_hits: int
    num_evictions: int
    num_broadcasts: int
    num_refused: int
    num_recomputed: int
    read_bytes: int
    written_bytes: int
    inactive_share: float
    task_time_s: float
    makespan_s: float

    @property
    def hit_share(self) -> float:
        return self.num_hits / max(1, self.num_accesses)

    @property
    def effective_hit_share(self) -> float:
        """Hits of tasks that found *all* their inputs in memory, per access."""
        return self.num_effective_hits / max(1, self.num_accesses)
