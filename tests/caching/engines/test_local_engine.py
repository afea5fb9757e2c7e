"""The local engine: real bytes, real files, and the very counts that the simulation expects."""

from __future__ import annotations

import errno
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conformance import VARIANTS
from takeup.caching.engines.local import LocalEngine, LocalStore
from takeup.caching.experiment import ENGINES
from takeup.caching.groups import GroupTable
from takeup.caching.model import CachingResult, EngineModel, Workload
from takeup.caching.policies import find_policy
from takeup.caching.simulate.plain import simulate
from takeup.caching.traces.job_graph import WorkloadBuilder
from takeup.core.lazy import find
from takeup.errors import BadInput, OutputFailed, UnknownName
from workloads import engines, workloads

MEASURED = ("task_time_s", "makespan_s", "inactive_share")  # real times; and memory is not watched while it runs


def counts(result: CachingResult) -> dict[str, object]:
    return {name: getattr(result, name) for name in CachingResult.__slots__ if name not in MEASURED}


@settings(max_examples=60, deadline=None)
@given(workload=workloads(max_tasks=15), drawn=engines, name=st.sampled_from(VARIANTS))
def test_the_engine_counts_what_the_simulation_counts(workload: Workload, drawn: EngineModel, name: str) -> None:
    spec = find_policy(name)
    model = EngineModel(drawn.capacity_bytes, "disk", drawn.cost_model, drawn.profile, disk_bytes_per_s=1.0)
    with TemporaryDirectory() as folder:
        result = LocalEngine(spec, workload, model, Path(folder)).run()

    assert counts(result) == counts(simulate(spec, workload, model))


def two_blocks() -> Workload:
    builder = WorkloadBuilder("two blocks")
    for block in "ab":
        builder.block(block, 3)
        builder.task(outputs=block)
    builder.task(inputs="ab")
    return builder.build()


def test_every_task_is_heard_of(tmp_path: Path) -> None:
    done: list[int] = []
    LocalEngine(find_policy("lru"), two_blocks(), EngineModel(3), tmp_path).run(lambda: done.append(1))

    assert len(done) == 3


def test_a_byte_that_changed_on_disk_is_noticed(tmp_path: Path) -> None:
    engine = LocalEngine(find_policy("lru"), two_blocks(), EngineModel(3), tmp_path)

    def damage() -> None:
        for file in tmp_path.glob("worker-0/*"):
            file.write_bytes(b"???")

    with pytest.raises(AssertionError, match="block 0 came back with other bytes"):
        engine.run(damage)


def test_recomputing_is_not_what_this_engine_does(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="reads lost blocks back from disk; leave out '--miss recompute'"):
        LocalEngine(find_policy("lru"), two_blocks(), EngineModel(3, "recompute"), tmp_path)


def test_engines_are_found_by_name() -> None:
    assert find("caching engine", "local", ENGINES) is LocalEngine
    with pytest.raises(UnknownName, match="no caching engine 'locall'; did you mean 'local'"):
        find("caching engine", "locall", ENGINES)


# The store as a library ---------------------------------------------------------------------------------------------


def make_store(folder: Path, capacity_bytes: int = 4, policy: str = "lru") -> LocalStore:
    table = GroupTable()
    return LocalStore(find_policy(policy).make(table, capacity_bytes), table, capacity_bytes, folder)


@settings(max_examples=40, deadline=None)
@given(
    values=st.dictionaries(st.text(max_size=3), st.binary(max_size=6), max_size=8),
    capacity_bytes=st.integers(1, 12),
    name=st.sampled_from(VARIANTS),
)
def test_values_come_back_byte_for_byte(values: dict[str, bytes], capacity_bytes: int, name: str) -> None:
    with TemporaryDirectory() as folder:
        store = make_store(Path(folder), capacity_bytes, name)
        for block, value in (*values.items(), *values.items()):
            store.put(block, value)
            assert store.free_bytes >= 0
        found = {}
        for block in values:
            here = store.get(block)
            found[block] = store.load(block) if here is None else here

    assert found == values


def test_what_fits_stays_in_memory_and_leaves_no_file(tmp_path: Path) -> None:
    store = make_store(tmp_path)
    room = store.put("a", b"1234")

    assert room.admit
    assert (store.get("a"), store.free_bytes) == (b"1234", 0)
    assert list(tmp_path.iterdir()) == []


def test_what_is_evicted_is_in_a_file_and_not_in_memory(tmp_path: Path) -> None:
    store = make_store(tmp_path)
    store.put("a", b"1234")
    room = store.put("b", b"56")

    assert [eviction.block for eviction in room.evict] == ["a"]
    assert (store.get("a"), store.load("a")) == (None, b"1234")
    assert (store.counts.num_evictions, store.counts.written_bytes, store.counts.read_bytes) == (1, 4, 4)


def test_a_read_counts_as_a_use(tmp_path: Path) -> None:
    store = make_store(tmp_path, 2)
    store.put("a", b"1")
    store.put("b", b"2")
    store.get("a")
    store.put("c", b"3")

    assert store.get("b") is None


def test_a_refused_block_goes_to_its_file(tmp_path: Path) -> None:
    store = make_store(tmp_path)
    room = store.put("large", b"123456")

    assert not room.admit
    assert (store.get("large"), store.load("large")) == (None, b"123456")
    assert (store.counts.num_refused, store.free_bytes) == (1, 4)


def test_pinned_blocks_stay(tmp_path: Path) -> None:
    store = make_store(tmp_path)
    store.put("a", b"1234")

    assert not store.put("b", b"5", pinned=["a"]).admit
    assert store.get("a") == b"1234"


def test_a_block_is_written_once(tmp_path: Path) -> None:
    store = make_store(tmp_path, 1)
    for block, value in (("a", b"1"), ("b", b"2"), ("a", b"1"), ("b", b"2")):
        store.put(block, value)

    assert (store.counts.num_evictions, store.counts.written_bytes) == (3, 2)


def test_a_block_with_a_clean_copy_is_half_as_dear_to_lose(tmp_path: Path) -> None:
    store = make_store(tmp_path)
    store.put("a", b"1234")
    new = store.table.cost_s("a")
    store.put("b", b"1")
    store.put("a", store.load("a"))

    assert (new, store.table.cost_s("a")) == (2 * 4, 4)


def test_putting_a_block_again_takes_no_more_room(tmp_path: Path) -> None:
    store = make_store(tmp_path)
    store.put("a", b"12")
    store.put("a", b"12")
    free_bytes = store.free_bytes
    store.put("b", b"34")
    store.put("a", b"12")

    assert (free_bytes, store.free_bytes, store.counts.num_evictions) == (2, 0, 0)
    assert [eviction.block for eviction in store.put("c", b"56").evict] == ["b"]  # a was used last


@pytest.mark.parametrize("capacity_bytes", [4, 1])
def test_other_bytes_under_the_name_of_a_block_are_refused(tmp_path: Path, capacity_bytes: int) -> None:
    store = make_store(tmp_path, capacity_bytes)  # in memory, or in its file
    store.put("a", b"12")

    with pytest.raises(BadInput, match="block 'a' was put here before with other bytes; give the new ones a new name"):
        store.put("a", b"34")


def test_a_block_nobody_put_cannot_be_loaded(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="block 'a' has no file in this store"):
        make_store(tmp_path).load("a")


def test_the_store_tells_the_table_what_happens(tmp_path: Path) -> None:
    store = make_store(tmp_path, 2)
    store.table.open("reader", "ab")
    store.put("a", b"1")
    store.put("b", b"2")
    before = store.table.erc("a")
    store.put("c", b"3")

    assert (before, store.table.erc("a")) == (1, 0)
    assert store.counts.num_broadcasts == 1


@pytest.fixture
def full_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("takeup.core.files.os.fsync", fail)


@pytest.mark.usefixtures("full_disk")
@pytest.mark.parametrize("policy", ["lru", "fifo", "spark", "lerc"])
def test_a_full_disk_is_said_and_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, policy: str) -> None:
    store = make_store(tmp_path, 2, policy)
    store.put("a", b"1")
    store.put("b", b"2")
    with pytest.raises(OutputFailed, match="No space left on device"):
        store.put("c", b"3")

    assert list(tmp_path.iterdir()) == []
    assert (store.get("a"), store.get("b"), store.get("c")) == (b"1", b"2", None)
    assert (store.counts.num_evictions, store.counts.written_bytes, store.free_bytes) == (0, 0, 0)
    assert not store.table.in_memory("c")

    monkeypatch.undo()  # somebody made space
    for block, value in (("c", b"3"), ("d", b"4"), ("e", b"5")):
        store.put(block, value)

    values = [store.get(block) or store.load(block) for block in "abcde"]
    assert values == [b"1", b"2", b"3", b"4", b"5"]


@pytest.mark.usefixtures("full_disk")
def test_a_refused_block_that_cannot_be_written_is_nowhere(tmp_path: Path) -> None:
    store = make_store(tmp_path)
    with pytest.raises(OutputFailed):
        store.put("large", b"123456")

    assert list(tmp_path.iterdir()) == []
    assert store.get("large") is None
    assert store.counts.num_refused == 0


# Smaller workloads --------------------------------------------------------------------------------------------------


def sized(*sizes_bytes: int) -> Workload:
    builder = WorkloadBuilder("sized")
    for number, size_bytes in enumerate(sizes_bytes):
        builder.block(number, size_bytes)
        builder.task(outputs=[number])
    return builder.build()


def test_shrinking_keeps_the_proportions() -> None:
    assert sized(100, 200, 700).shrunk(100).block_bytes.tolist() == [10, 20, 70]


def test_a_workload_that_is_small_enough_stays_as_it_is() -> None:
    assert sized(1, 2, 7).shrunk(100).block_bytes.tolist() == [1, 2, 7]


def test_a_block_keeps_at_least_one_byte() -> None:
    assert sized(1, 10_000).shrunk(100).block_bytes.tolist() == [1, 99]


@given(sizes_bytes=st.lists(st.integers(1, 10**12), min_size=1, max_size=20), wanted_bytes=st.integers(100, 10**6))
def test_a_smaller_workload_is_no_larger_than_wanted(sizes_bytes: list[int], wanted_bytes: int) -> None:
    workload = sized(*sizes_bytes)
    smaller = workload.shrunk(wanted_bytes)

    assert smaller.working_set_bytes <= wanted_bytes + len(sizes_bytes)  # a byte for what would vanish
    assert np.all(smaller.block_bytes >= 1)
    assert np.array_equal(smaller.output_blocks, workload.output_blocks)
