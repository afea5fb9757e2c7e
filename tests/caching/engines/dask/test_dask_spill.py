"""A guided spill buffer keeps every value, spills in the policy's order, and turns back into the stock one."""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zict
from distributed.spill import Slow, SpillBuffer
from hypothesis import given, settings
from hypothesis import strategies as st

from takeup.caching.engines.dask.spill import (
    GuidedMemory,
    GuidedSlow,
    SpillHooks,
    guide_buffer,
    guided_memory,
    release_buffer,
    why_not,
)
from takeup.caching.engines.dask.spill_guide import SpillGuide, SpillOptions
from takeup.caching.policies import find_policy

SIZE_BYTES = 8_000
TARGET_BYTES = 3 * SIZE_BYTES + 2_000  # three values and a little


def array(number: int) -> np.ndarray[Any, Any]:
    return np.full(SIZE_BYTES // 8, number, np.int64)


class Guided:
    """A guided buffer in a folder, and what it reported."""

    def __init__(self, folder: Path, policy: str = "furthest_next_use", max_spill: Any = False, **options: Any) -> None:
        self.data = SpillBuffer(str(folder), target=TARGET_BYTES, max_spill=max_spill)
        self.guide = SpillGuide(find_policy(policy), TARGET_BYTES, SpillOptions(**options))
        self.reports: list[tuple[Hashable, bool]] = []
        self.releases: list[None] = []
        self.hooks: SpillHooks = guide_buffer(
            self.data, self.guide, lambda *report: self.reports.append(report), lambda: self.releases.append(None)
        )
        self.folder = folder
        self.hooks.wake(self.data.fast)

    def fill(self, *names: str) -> None:
        for name in names:
            self.data[name] = array(ord(name))
        self.guide.apply_message([], [], 1, 1)

    def expect(self, *reads: str) -> None:
        """Readers are announced, in this order."""
        self.guide.apply_message([(f"reader-{i}", float(i), 0.0, (name,)) for i, name in enumerate(reads)], [], 1, 1)

    @property
    def in_memory(self) -> str:
        return "".join(sorted(map(str, self.data.fast.d)))

    @property
    def num_files(self) -> int:
        return len(list(self.folder.iterdir()))

    def written_bytes(self) -> float:
        return self.data.cumulative_metrics["disk-write", "bytes"]


@pytest.fixture
def guided(tmp_path: Path) -> Guided:
    return Guided(tmp_path)


def test_the_value_whose_reader_runs_last_leaves_first(guided: Guided) -> None:
    guided.expect("a", "b", "c", "d")
    guided.fill("d", "c", "b", "a")

    assert guided.in_memory == "abc"


def test_a_value_read_back_is_the_value_that_was_stored(guided: Guided) -> None:
    guided.fill(*"abcdef")

    for name in "abcdef":
        assert (guided.data[name] == array(ord(name))).all()


def test_a_value_that_goes_to_and_fro_is_written_once(guided: Guided) -> None:
    guided.fill(*"abcdef")
    for _ in range(5):
        for name in "abcdef":
            guided.data[name]

    assert guided.written_bytes() < 6.5 * SIZE_BYTES
    assert guided.guide.counts.num_clean_evictions > 10
    assert guided.hooks.copies.total_bytes > 0


def test_without_clean_copies_no_value_is_in_two_places(tmp_path: Path) -> None:
    guided = Guided(tmp_path, clean_copies=False)
    guided.fill(*"abcdef")
    for name in "abcdef":
        guided.data[name]

    assert len(guided.hooks.copies) == 0
    assert guided.num_files == len(guided.data.slow)


def test_a_deleted_value_leaves_no_file_behind(guided: Guided) -> None:
    guided.fill(*"abcdef")
    for name in "abcdef":
        guided.data[name]
    for name in "abcdef":
        del guided.data[name]

    assert guided.num_files == 0
    assert (len(guided.data), len(guided.guide.order), guided.guide.table._in_memory) == (0, 0, {})


def test_a_new_value_under_an_old_name_is_never_taken_for_the_copy_of_the_old_one(guided: Guided) -> None:
    guided.fill(*"abcd")
    for name in "abcd":
        guided.data[name]
    for name in "abcd":
        guided.data[name] = array(7)
    guided.fill("e", "f", "g", "h")

    assert all((guided.data[name] == array(7)).all() for name in "abcd")


def test_copies_count_towards_max_spill(tmp_path: Path) -> None:
    most_bytes = 4 * SIZE_BYTES
    guided = Guided(tmp_path, max_spill=most_bytes)
    guided.fill(*"abcdef")
    for name in "abcdef" * 3:
        assert (guided.data[name] == array(ord(name))).all()

        assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= most_bytes


def test_when_max_spill_is_reached_values_stay_in_memory(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    guided = Guided(tmp_path, max_spill=SIZE_BYTES + 500)
    with caplog.at_level(logging.WARNING, "takeup.dask"):
        guided.fill(*"abcdef")

    assert all((guided.data[name] == array(ord(name))).all() for name in "abcdef")
    assert len(guided.data.slow) <= 1
    assert [record.name for record in caplog.records] == ["takeup.dask"]


def test_a_full_disk_loses_nothing_and_drops_copies_first(guided: Guided, monkeypatch: pytest.MonkeyPatch) -> None:
    guided.fill(*"abcdef")
    for name in "abcdef":
        guided.data[name]
    write, is_full = zict.File.__setitem__, [True]

    def refuse(file: Any, key: Any, value: Any) -> None:
        if is_full[0] and guided.num_files > 3:
            raise OSError("no space left on device")
        write(file, key, value)

    monkeypatch.setattr(zict.File, "__setitem__", refuse)
    for name in "ghijkl":
        guided.data[name] = array(ord(name))

    assert all((guided.data[name] == array(ord(name))).all() for name in "abcdefghijkl")
    assert len(guided.hooks.copies) <= 3


def test_inputs_of_a_running_task_stay_in_memory(guided: Guided) -> None:
    guided.fill(*"abc")
    guided.guide.started("task", ["a", "b"])
    guided.fill(*"defg")

    assert {"a", "b"} <= set(guided.in_memory)


def test_the_result_of_a_task_releases_its_inputs_before_room_is_made(guided: Guided) -> None:
    guided.expect("c", "b", "z")
    guided.guide.apply_message([("z", 5.0, 0.0, ("a",))], [], 1, 1)
    guided.fill(*"abc")
    guided.guide.started("z", ["a"])
    guided.data["z"] = array(1)

    assert guided.in_memory == "bcz"
    assert guided.guide.now().num_pinned == 0


def test_a_value_about_to_be_freed_is_not_written(guided: Guided) -> None:
    small = np.zeros(SIZE_BYTES // 16, np.int64)
    guided.guide.apply_message([("z", 1.0, 0.0, ("a",))], [], 1, 1)
    guided.expect("b", "c")
    guided.data["a"] = small
    guided.fill(*"bc")
    guided.guide.started("z", ["a"])
    guided.data["z"] = array(1)

    assert (guided.in_memory, guided.written_bytes()) == ("abcz", 0)
    del guided.data["a"]
    assert guided.guide.pending_frees.total_bytes == 0


def test_when_asked_for_memory_even_pinned_values_leave(guided: Guided) -> None:
    guided.fill("a")
    guided.guide.started("task", ["a"])

    assert guided.data.evict() == SIZE_BYTES
    assert guided.in_memory == ""


def test_a_value_that_cannot_be_pickled_is_passed_over(guided: Guided, caplog: pytest.LogCaptureFixture) -> None:
    class Stubborn:
        def __sizeof__(self) -> int:
            return SIZE_BYTES

        def __reduce__(self) -> Any:
            raise TypeError("no")

    stubborn = Stubborn()
    guided.expect(*"bcdefa")
    guided.data["a"] = stubborn
    guided.fill(*"bcdef")

    assert guided.data["a"] is stubborn
    assert len(guided.data.slow) >= 2
    assert "cannot be pickled" in caplog.text


def test_a_value_that_is_read_back_stays_until_the_next_one_needs_room(guided: Guided) -> None:
    guided.expect("b", "c", "d")
    guided.fill(*"abcd")
    guided.data["a"]

    assert "a" in guided.in_memory
    guided.fill("e")
    assert "a" not in guided.in_memory


def test_a_value_larger_than_all_memory_goes_straight_to_disk(guided: Guided) -> None:
    guided.data["huge"] = np.zeros(TARGET_BYTES + 1, np.int8)
    guided.fill("a")

    assert guided.in_memory == "a"
    assert guided.data["huge"].sum() == 0  # type: ignore[attr-defined]
    assert guided.in_memory == "a"


def test_tiny_values_leave_last(guided: Guided) -> None:
    guided.expect("b", "c", "d", "e")
    guided.data["tiny"] = None
    guided.fill(*"bcde")

    assert "tiny" in guided.data.fast


def test_a_new_value_waits_for_its_announcement_before_it_can_be_dead(guided: Guided) -> None:
    guided.expect("a", "b", "c")
    guided.fill(*"abc")
    guided.data["n"] = array(0)

    assert guided.in_memory == "abn"


@pytest.mark.parametrize("policy", ["lru", "lrc", "lerc", "mrd", "furthest_next_use", "dag"])
@settings(max_examples=25, deadline=None)
@given(steps=st.lists(st.tuples(st.sampled_from(["set", "get", "del", "evict", "run", "end"]), st.integers(0, 9))))
def test_any_sequence_of_operations_gives_what_a_dictionary_gives(
    tmp_path_factory: pytest.TempPathFactory, policy: str, steps: list[tuple[str, int]]
) -> None:
    guided = Guided(tmp_path_factory.mktemp("spill"), policy)
    plain: dict[int, int] = {}
    for at, (action, key) in enumerate(steps):
        perform(guided, plain, action, key, at)
        assert guided.data.fast.total_weight <= TARGET_BYTES or guided.guide.now().num_pinned
    values = {key: int(guided.data[key][0]) for key in list(guided.data)}  # type: ignore[index]
    on_disk = set(guided.data.slow) | set(guided.hooks.copies._copies)

    assert values == plain
    assert guided.num_files == len(on_disk)
    assert not guided.releases


def perform(guided: Guided, plain: dict[int, int], action: str, key: int, at: int) -> None:
    if action == "set":
        guided.data[key] = array(at)
        plain[key] = at
    elif action == "get" and key in plain:
        assert guided.data[key][0] == plain[key]  # type: ignore[index]
    elif action == "del" and key in plain:
        del guided.data[key]
        del plain[key]
    elif action == "evict" and guided.data.fast:
        guided.data.evict()
    elif action == "run":
        guided.guide.apply_message([(f"task-{key}", float(at), 0.0, (key, (key + 1) % 10))], [], 1, at)
        guided.guide.started(f"task-{key}", [key, (key + 1) % 10])
    elif action == "end":
        guided.guide.finished(f"task-{key}")


def test_release_gives_back_the_stock_classes_and_leaves_no_trace(guided: Guided) -> None:
    stock = SpillBuffer(str(guided.folder / "stock"), target=TARGET_BYTES)
    guided.fill(*"abcdef")
    for name in "abcdef":
        guided.data[name]
    release_buffer(guided.data)
    release_buffer(guided.data)

    assert type(guided.data.fast) is zict.LRU
    assert type(guided.data._slow_uncached) is Slow
    assert vars(guided.data.fast).keys() == vars(stock.fast).keys()
    assert vars(guided.data._slow_uncached).keys() == vars(stock._slow_uncached).keys()
    assert guided.num_files == len(guided.data.slow) + 1
    assert all((guided.data[name] == array(ord(name))).all() for name in "abcdef")


@pytest.mark.parametrize("broken", ["read", "stored", "finished", "evicted", "deleted", "_order"])
def test_whatever_fails_in_the_guide_the_buffer_goes_on(
    guided: Guided, broken: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*args: Any) -> None:
        raise RuntimeError("broken on purpose")

    guided.fill(*"ab")
    monkeypatch.setattr(guided.guide, broken, fail)
    monkeypatch.setattr(guided.guide.order, "_order", guided.guide._order)
    for name in "cdefgh":
        guided.data[name] = array(ord(name))
        guided.data["a"]
    del guided.data["h"]
    guided.data.evict()

    assert all((guided.data[name] == array(ord(name))).all() for name in "abcdefg")
    assert guided.data.fast.total_weight <= TARGET_BYTES
    assert len(guided.releases) == len(caplog.records) == 1
    release_buffer(guided.data)
    assert all((guided.data[name] == array(ord(name))).all() for name in "abcdefg")


def test_groups_that_break_and_complete_are_reported_for_lerc_only(tmp_path: Path) -> None:
    pair = ("reader", 1.0, 0.0, ("a", "b"))
    reports = {}
    for policy in ("lerc", "lrc"):
        guided = Guided(tmp_path / policy, policy)
        guided.guide.apply_message([pair], [], 1, 1)
        guided.fill(*"ab")
        guided.data.fast.evict("a")
        guided.data["a"]
        reports[policy] = guided.reports

    assert reports == {"lerc": [("a", True), ("a", False)], "lrc": []}


def other_memory(data: SpillBuffer) -> None:
    data.fast.__class__ = type("Unknown", (zict.LRU,), {})


def fewer_fields(data: SpillBuffer) -> None:
    del data._slow_uncached.max_weight


@pytest.mark.parametrize(("change", "reason"), [(other_memory, "not built as"), (fewer_fields, "lacks max_weight")])
def test_a_buffer_of_an_unknown_make_is_refused(
    tmp_path: Path, change: Callable[[SpillBuffer], None], reason: str
) -> None:
    data = SpillBuffer(str(tmp_path), target=TARGET_BYTES)

    assert why_not(data) is None
    change(data)
    assert reason in str(why_not(data))


def test_a_worker_that_does_not_spill_is_refused() -> None:
    assert "in a dict" in str(why_not({}))
    assert guided_memory({}) is None


def test_a_guided_buffer_can_be_told_from_a_stock_one(guided: Guided) -> None:
    assert isinstance(guided_memory(guided.data), GuidedMemory)
    assert isinstance(guided.data._slow_uncached, GuidedSlow)
    release_buffer(guided.data)
    assert guided_memory(guided.data) is None


def test_a_guide_sleeps_until_half_the_target_is_in_memory(tmp_path: Path) -> None:
    data, woke = SpillBuffer(str(tmp_path), target=4 * SIZE_BYTES), list[None]()
    guide = SpillGuide(find_policy("dag"), 4 * SIZE_BYTES, SpillOptions())
    hooks = guide_buffer(data, guide, lambda *report: None, lambda: None, lambda: woke.append(None))

    data["a"] = array(1)
    asleep = hooks.is_asleep, len(guide.order)
    data["b"] = array(2)

    assert asleep == (True, 0)
    assert (hooks.is_asleep, len(guide.order), woke) == (False, 2, [None])


def test_a_value_that_is_evicted_wakes_the_guide(tmp_path: Path) -> None:
    data = SpillBuffer(str(tmp_path), target=4 * SIZE_BYTES)
    hooks = guide_buffer(
        data, SpillGuide(find_policy("dag"), 4 * SIZE_BYTES, SpillOptions()), lambda *report: None, lambda: None
    )
    data["a"] = array(1)

    assert data.evict() > 0
    assert hooks.guide.counts.num_evictions == 1
