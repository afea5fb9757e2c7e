"""The store as a library: real bytes and real files."""

from __future__ import annotations

import errno
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conformance import VARIANTS
from takeup.caching.engines.local import LocalStore
from takeup.caching.groups import GroupTable
from takeup.caching.policies import find_policy
from takeup.errors import BadInput, OutputFailed


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
@pytest.mark.parametrize("policy", ["lru", "spark", "lerc"])
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
