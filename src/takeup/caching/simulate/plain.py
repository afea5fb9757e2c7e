"""The simulated engine: run a workload in virtual time under one policy and count what its cache did.

How it works. Tasks run in the order of the workload, each on its worker; every worker has an equal part of the memory
and one policy. A task

    1. looks up its inputs: residency is evaluated at its start, for all inputs at once;
    2. restores the missing ones, from disk or by recomputing them from their own inputs;
    3. closes as a consumer, because it has read what it needed;
    4. stores the restored blocks, then its outputs; its inputs are pinned until it ends.

When a block with pending readers is lost and must be recomputed, its producer becomes a consumer again: the inputs of
the recomputation have a reader too. A network between workers is not modelled.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Mapping

from takeup.caching.contract import Policy, PolicySpec
from takeup.caching.groups import GroupTable
from takeup.caching.model import AdmissionDecision, CachingResult, EngineModel, Task, Workload
from takeup.caching.simulate.expectations import Expected

EXPECTED = -2  # less the number of a block: the guessed reader of that block, as a consumer
OnDecision = Callable[[int, AdmissionDecision], None]


def simulate(
    spec: PolicySpec,
    workload: Workload,
    engine: EngineModel,
    on_room: OnDecision = lambda block, room: None,
    expected: Mapping[int, list[Expected]] | None = None,
) -> CachingResult:
    """Run the workload under the policy; `on_room` receives every decision. `compiled.replay` is the fast version.

    `expected`: readers that the engine guesses when a job starts, see `expectations`.
    """
    return Simulation(spec, workload, engine, on_room, expected).run()


class WorkerStore:
    """The memory of one worker: the free bytes, and the policy that selects the victims."""

    def __init__(self, policy: Policy, capacity_bytes: int) -> None:
        self.policy = policy
        self.free_bytes = capacity_bytes


class Simulation:
    """One run, advanced task by task."""

    def __init__(
        self,
        spec: PolicySpec,
        workload: Workload,
        engine: EngineModel,
        on_room: OnDecision = lambda block, room: None,
        expected: Mapping[int, list[Expected]] | None = None,
    ) -> None:
        self.spec, self.workload, self.engine, self.on_room = spec, workload, engine, on_room
        self.expected = dict(expected or {})
        self.table = GroupTable()
        worker_bytes = engine.capacity_bytes // workload.num_workers
        self.capacity_bytes = worker_bytes * workload.num_workers
        self.stores = [
            WorkerStore(spec.make(self.table, worker_bytes), worker_bytes) for _ in range(workload.num_workers)
        ]
        self.positions = workload.positions_bytes().tolist()
        self.block_bytes: list[int] = workload.block_bytes.tolist()
        self.producer: list[int] = workload.block_producer.tolist()
        self.recomputes: list[bool] = workload.recomputes(engine.miss).tolist()
        self.dataset: list[int] = workload.block_dataset.tolist()
        self.ending = workload.ending_before()
        self.on_disk = {block for block, producer in enumerate(self.producer) if producer < 0}
        self.timeline = TaskTimeline(workload)
        self.counts: defaultdict[str, int] = defaultdict(int)
        self.inactive_now: defaultdict[int, int] = defaultdict(int)  # by block: its bytes in memory without a reader
        self.inactive_now_bytes = self.inactive_bytes = self.used_bytes = 0

    def run(self) -> CachingResult:
        tasks, tasks_of_job = list(self.workload.tasks()), self.workload.tasks_by_job()
        if self.engine.profile == "recurring" or self.spec.offline:
            self._announce(tasks)
            tasks_of_job.clear()
        for task in tasks:
            self._announce(tasks_of_job.pop(task.job, []))
            self._expect(self.expected.pop(task.job, []), task.stage)
            for block in self.ending.get(task.index, ()):
                self._drop(block)
            self._execute(task)
        return self._result()

    def _announce(self, tasks: list[Task]) -> None:
        """Open the groups of these consumers."""
        for task in tasks:
            self._open(task.index, task.inputs, self.positions[task.index], task.stage)
        for task in tasks:
            for block in task.inputs:
                self._reopen_producers(block)

    def _expect(self, expected: list[Expected], stage: int) -> None:
        """Open or close the guessed reader of each of these blocks."""
        for block, position, num_stages in expected:
            if position is None:
                self._close(EXPECTED - block, (block,))
            else:
                self._open(EXPECTED - block, (block,), position, stage + num_stages)
                self._reopen_producers(block)

    def _execute(self, task: Task) -> None:
        present = [block for block in task.inputs if self.table.in_memory(block)]
        missing = [block for block in task.inputs if not self.table.in_memory(block)]
        self.counts["num_hits"] += len(present)
        self.counts["num_effective_hits"] += 0 if missing else len(present)
        for block in present:
            self._store_of(block).policy.read(block)
        restored: dict[int, None] = {}
        waits_s = [self._restore(block, restored) for block in missing]
        self._close(task.index, task.inputs)
        for block in (*restored, *task.outputs):
            self._put(block, pinned=task.inputs)
        self.timeline.advance(task, self._wait_s(waits_s, present))
        self._measure_inactive()

    def _restore(self, block: int, restored: dict[int, None]) -> float:
        """Restore a missing block, and the inputs it needs, for the running task; returns the seconds this takes.

        Depth first with an explicit stack, because a lineage may be longer than Python's recursion limit.
        """
        seconds, waiting = 0.0, [(block, False)]
        while waiting:
            block, has_inputs = waiting.pop()
            producer = self.producer[block]
            if has_inputs:
                restored[block] = None
                seconds += float(self.workload.task_compute_s[producer])
                self.counts["num_recomputed"] += 1
                self._close(producer, self.workload.inputs(producer))
            elif self.table.in_memory(block):
                self._store_of(block).policy.read(block)
            elif block not in restored and not self.recomputes[block]:
                restored[block] = None
                seconds += self._read_s(block)
                self.counts["read_bytes"] += self.block_bytes[block]
            elif block not in restored:
                waiting.append((block, True))
                waiting += [(needed, False) for needed in reversed(self.workload.inputs(producer))]
        return seconds

    def _put(self, block: int, pinned: Collection[int]) -> None:
        """Store the block if the policy makes room for it."""
        store, size_bytes = self._store_of(block), self.block_bytes[block]
        dataset = self.dataset[block] if self.dataset[block] >= 0 else None
        self.table.describe(block, size_bytes, self._cost_s(block), dataset)
        self.table.cached(block)
        room = store.policy.make_room(block, size_bytes, store.free_bytes, pinned)
        self.on_room(block, room)
        for eviction in room.evict:
            assert isinstance(eviction.block, int)
            self._evict(store, eviction.block)
        if room.admit:
            store.free_bytes -= size_bytes
            store.policy.stored(block, size_bytes)
            self._note_inactive((block,))
        else:
            self.counts["num_refused"] += 1
            self.table.lost(block)
            self._leave_memory(block)

    def _evict(self, store: WorkerStore, block: int) -> None:
        store.policy.removed(block)
        store.free_bytes += self.block_bytes[block]
        self.counts["num_evictions"] += 1
        self.counts["num_broadcasts"] += self.table.lost(block) > 0
        self._note_inactive((block,))
        self._leave_memory(block)

    def _drop(self, block: int) -> None:
        """The application no longer wants the block: it is removed from memory, and no copy is written."""
        if self.table.in_memory(block):
            store = self._store_of(block)
            store.policy.removed(block)
            store.free_bytes += self.block_bytes[block]
            self.table.lost(block)
            self._note_inactive((block,))

    def _leave_memory(self, block: int) -> None:
        if not self.recomputes[block] and block not in self.on_disk:
            self.on_disk.add(block)
            self.counts["written_bytes"] += self.block_bytes[block]
        self._reopen_producers(block)

    def _reopen_producers(self, block: int) -> None:
        """If a lost block with readers must be computed again, its producer becomes a consumer once more."""
        waiting = [block]
        while waiting:
            block = waiting.pop()
            producer = self.producer[block]
            if not self.recomputes[block] or self.table.is_open(producer):
                continue
            needed = self.workload.inputs(producer)
            if needed and self.table.is_lost(block) and self.table.rc(block) > 0:
                self._open(producer, needed, self.table.next_use(block), int(self.table.next_stage(block)))
                waiting += reversed(needed)

    def _cost_s(self, block: int) -> float:
        """Seconds to restore the block after a loss, including the write if there is no copy on disk."""
        producer = self.producer[block]
        if not self.recomputes[block]:
            return self._read_s(block) * (1 if block in self.on_disk else 2)
        lost = (needed for needed in self.workload.inputs(producer) if self.table.is_lost(needed))
        return float(self.workload.task_compute_s[producer]) + sum(map(self.table.cost_s, lost))

    def _wait_s(self, waits_s: list[float], present: list[int]) -> float:
        """Seconds the task waits for all its missing inputs, by the engine's cost model."""
        if not waits_s:
            return 0.0
        if self.engine.cost_model == "all-or-nothing":
            return sum(waits_s) + sum(map(self._again_s, present))
        return sum(waits_s)

    def _again_s(self, block: int) -> float:
        """Seconds to read or recompute a block that is in memory, as if it were not."""
        producer = self.producer[block]
        if not self.recomputes[block]:
            return self._read_s(block)
        return float(self.workload.task_compute_s[producer])

    def _read_s(self, block: int) -> float:
        return self.block_bytes[block] / self.engine.disk_bytes_per_s

    def _store_of(self, block: int) -> WorkerStore:
        return self.stores[int(self.workload.block_worker[block])]

    def _open(self, consumer: int, blocks: tuple[int, ...], position: float, stage: int) -> None:
        self.table.open(consumer, blocks, position, stage)
        self._note_inactive(blocks)

    def _close(self, consumer: int, blocks: tuple[int, ...]) -> None:
        self.table.close(consumer)
        self._note_inactive(blocks)

    def _note_inactive(self, blocks: tuple[int, ...]) -> None:
        """Readers of the blocks, or their places, have changed."""
        for block in blocks:
            is_inactive = self.table.in_memory(block) and self.table.rc(block) == 0
            size_bytes = self.block_bytes[block] if is_inactive else 0
            self.inactive_now_bytes += size_bytes - self.inactive_now[block]
            self.inactive_now[block] = size_bytes

    def _measure_inactive(self) -> None:
        """Add up the bytes in memory, and the part of them without a future reader."""
        self.used_bytes += self.capacity_bytes - sum(store.free_bytes for store in self.stores)
        self.inactive_bytes += self.inactive_now_bytes

    def _result(self) -> CachingResult:
        names = ("hits", "effective_hits", "evictions", "broadcasts", "refused", "recomputed")
        return CachingResult(
            policy=self.spec.name,
            workload=self.workload.name,
            capacity_bytes=self.engine.capacity_bytes,
            num_accesses=self.workload.num_accesses,
            **{f"num_{name}": self.counts[f"num_{name}"] for name in names},
            read_bytes=self.counts["read_bytes"],
            written_bytes=self.counts["written_bytes"],
            inactive_share=self.inactive_bytes / max(1, self.used_bytes),
            task_time_s=self.timeline.task_time_s,
            makespan_s=self.timeline.makespan_s,
        )


class TaskTimeline:
    """When tasks end: a worker runs one task at a time, a stage waits for its predecessor, a reader for its writer."""

    def __init__(self, workload: Workload) -> None:
        self.workload = workload
        self.worker_free_s = [0.0] * workload.num_workers
        self.stage_end_s = [0.0] * len(workload.stage_after)
        self.block_ready_s = [0.0] * workload.num_blocks
        self.task_time_s = 0.0

    @property
    def makespan_s(self) -> float:
        return max(self.worker_free_s)

    def advance(self, task: Task, wait_s: float) -> None:
        after = int(self.workload.stage_after[task.stage])
        ready_s = [self.block_ready_s[block] for block in task.inputs]
        start_s = max(self.worker_free_s[task.worker], self.stage_end_s[after] if after >= 0 else 0.0, *ready_s, 0.0)
        duration_s = wait_s + task.compute_s
        end_s = start_s + duration_s
        self.task_time_s += duration_s
        self.worker_free_s[task.worker] = end_s
        self.stage_end_s[task.stage] = max(self.stage_end_s[task.stage], end_s)
        for block in task.outputs:
            self.block_ready_s[block] = end_s
