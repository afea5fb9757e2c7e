"""The local engine: blocks are real bytes in this process, a miss is a real read from a real file.

`LocalStore` is a bounded store any Python program can use: it keeps blocks in memory as its policy says and spills the
rest to a folder. A block is written once; the clean copy stays, so that evicting it again costs nothing. `LocalEngine`
runs a whole workload on such stores and checks that every byte read is the byte written.
"""

import time
import zlib
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from takeup.caching.contract import Policy, PolicySpec
from takeup.caching.groups import GroupTable
from takeup.caching.model import AdmissionDecision, BlockId, CachingResult, EngineModel, Task, Workload
from takeup.core.files import write_atomically
from takeup.errors import BadInput, OutputFailed


@dataclass(slots=True)
class StoreCounts:
    """What a store has done so far."""

    num_evictions: int = 0
    num_broadcasts: int = 0
    num_refused: int = 0
    read_bytes: int = 0
    written_bytes: int = 0


class LocalStore:
    """Blocks in memory up to `capacity_bytes`, the others in `folder`. Feeds the group table it is given.

    A block does not change: putting it again counts as a read, and different bytes under its name are refused.
    """

    def __init__(self, policy: Policy, table: GroupTable, capacity_bytes: int, folder: Path) -> None:
        self.policy, self.table, self.folder = policy, table, folder
        self.free_bytes = capacity_bytes
        self.counts = StoreCounts()
        self._memory: dict[BlockId, bytes] = {}
        self._files: dict[BlockId, Path] = {}
        self._checksums: dict[BlockId, int] = {}

    def get(self, block: BlockId) -> bytes | None:
        value = self._memory.get(block)
        if value is not None:
            self.policy.read(block)
        return value

    def load(self, block: BlockId) -> bytes:
        """Read a spilled block back from its file, without storing it."""
        if block not in self._files:
            raise BadInput(f"block {block!r} has no file in this store; get it from memory, or put it first")
        value = self._files[block].read_bytes()
        self.counts.read_bytes += len(value)
        return value

    def put(
        self, block: BlockId, value: bytes, pinned: Collection[BlockId] = (), dataset: int | None = None
    ) -> AdmissionDecision:
        """Make room as the policy says, then keep the block in memory if it was admitted, else in its file.

        Blocks of one `dataset` are siblings.
        """
        self._require_unchanged(block, value)
        if self.get(block) is not None:
            return AdmissionDecision((), admit=True)
        room = self._ask(block, value, pinned, dataset)
        self._spill_what_leaves(room, block, value)
        for eviction in room.evict:
            self._evict(eviction.block)
        if room.admit:
            self.free_bytes -= _size_bytes(value)
            self._memory[block] = value
            self.policy.stored(block, _size_bytes(value))
        else:
            self.counts.num_refused += 1
            self.table.lost(block)
        return room

    def discard(self, block: BlockId) -> None:
        """The block will not be read again: remove it from memory without spilling it."""
        if block in self._memory:
            self.free_bytes += _size_bytes(self._memory.pop(block))
            self.policy.removed(block)
            self.table.lost(block)

    def _require_unchanged(self, block: BlockId, value: bytes) -> None:
        checksum = zlib.crc32(value)
        if self._checksums.setdefault(block, checksum) != checksum:
            raise BadInput(f"block {block!r} was put here before with other bytes; give the new ones a new name")

    def _ask(self, block: BlockId, value: bytes, pinned: Collection[BlockId], dataset: int | None) -> AdmissionDecision:
        price = 1.0 if block in self._files else 2.0  # without a clean copy, eviction costs a write too
        self.table.describe(block, _size_bytes(value), price * _size_bytes(value), dataset)
        self.table.cached(block)
        return self.policy.make_room(block, _size_bytes(value), self.free_bytes, pinned)

    def _spill_what_leaves(self, room: AdmissionDecision, block: BlockId, value: bytes) -> None:
        """Write before anything moves, so that a full disk loses nothing and the store can be used on."""
        leaving = {eviction.block: self._memory[eviction.block] for eviction in room.evict}
        try:
            for name, content in (leaving if room.admit else {block: value}).items():
                self._spill(name, content)
        except OutputFailed:
            self.table.lost(block)
            for name, content in leaving.items():  # a policy may have removed them already
                self.policy.removed(name)
                self.policy.stored(name, _size_bytes(content))
            raise

    def _evict(self, block: BlockId) -> None:
        self.free_bytes += _size_bytes(self._memory.pop(block))
        self.policy.removed(block)
        self.counts.num_evictions += 1
        self.counts.num_broadcasts += self.table.lost(block) > 0

    def _spill(self, block: BlockId, value: bytes) -> None:
        if block not in self._files:
            path = self.folder / f"block-{len(self._files)}"
            write_atomically(path, value)
            self._files[block] = path
            self.counts.written_bytes += len(value)


def _size_bytes(value: bytes) -> int:
    """What a block counts for; at least one byte, also for an empty one."""
    return max(1, len(value))


class LocalEngine:
    """Runs the tasks of a workload one after the other on local stores, one for each of its workers."""

    def __init__(self, spec: PolicySpec, workload: Workload, model: EngineModel, folder: Path) -> None:
        if model.miss != "disk":
            raise BadInput(f"the local engine reads lost blocks back from disk; leave out '--miss {model.miss}'")
        self.spec, self.workload, self.model = spec, workload, model
        self.table = GroupTable(model.cost_model)
        worker_bytes = model.capacity_bytes // workload.num_workers
        folders = [folder / f"worker-{worker}" for worker in range(workload.num_workers)]
        self.stores = [
            LocalStore(spec.make(self.table, worker_bytes), self.table, worker_bytes, path) for path in folders
        ]
        self.positions = workload.positions_bytes().tolist()
        self.num_hits = self.num_effective_hits = 0
        self._checksums: dict[int, int] = {}

    def run(self, on_task: Callable[[], None] = lambda: None) -> CachingResult:
        """Run everything; `on_task` is called after each task."""
        started_s, started_cpu_s = time.perf_counter(), time.process_time()
        unknown, ending = self.workload.tasks_by_job(), self.workload.ending_before()
        if self.model.profile == "recurring" or self.spec.offline:
            self._announce(self.workload.tasks())
            unknown.clear()
        for block in np.flatnonzero(self.workload.block_producer < 0).tolist():
            self._store_of(block)._spill(block, self._make(block))
            self._store_of(block).counts.written_bytes = 0  # source data lies on disk before the run
        for task in self.workload.tasks():
            self._announce(unknown.pop(task.job, ()))
            for block in ending.get(task.index, ()):
                self._store_of(block).discard(block)
            self._execute(task)
            on_task()
        return self._result(time.process_time() - started_cpu_s, time.perf_counter() - started_s)

    def _announce(self, tasks: Iterable[Task]) -> None:
        """Open the groups of these consumers."""
        for task in tasks:
            self.table.open(task.index, task.inputs, self.positions[task.index], task.stage)

    def _execute(self, task: Task) -> None:
        present = {block: value for block in task.inputs if (value := self._store_of(block).get(block)) is not None}
        restored = {block: self._store_of(block).load(block) for block in task.inputs if block not in present}
        self.num_hits += len(present)
        self.num_effective_hits += 0 if restored else len(present)
        self._verify(present | restored)
        self.table.close(task.index)
        written = {block: self._make(block) for block in task.outputs}
        for block, value in (restored | written).items():
            dataset = int(self.workload.block_dataset[block])
            self._store_of(block).put(block, value, task.inputs, dataset if dataset >= 0 else None)

    def _make(self, block: int) -> bytes:
        """The content of a block: pseudo-random bytes determined by its number."""
        value = np.random.default_rng(block).bytes(int(self.workload.block_bytes[block]))
        self._checksums[block] = zlib.crc32(value)
        return value

    def _verify(self, values: dict[int, bytes]) -> None:
        for block, value in values.items():
            assert zlib.crc32(value) == self._checksums[block], f"block {block} came back with other bytes"

    def _store_of(self, block: int) -> LocalStore:
        return self.stores[int(self.workload.block_worker[block])]

    def _result(self, cpu_s: float, wall_s: float) -> CachingResult:
        names = ("num_evictions", "num_broadcasts", "num_refused", "read_bytes", "written_bytes")
        return CachingResult(
            policy=self.spec.name,
            workload=self.workload.name,
            capacity_bytes=self.model.capacity_bytes,
            num_accesses=self.workload.num_accesses,
            num_hits=self.num_hits,
            num_effective_hits=self.num_effective_hits,
            num_recomputed=0,
            **{name: sum(getattr(store.counts, name) for store in self.stores) for name in names},
            inactive_share=0.0,
            task_time_s=cpu_s,
            makespan_s=wall_s,
        )
