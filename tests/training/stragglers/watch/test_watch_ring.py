"""The ring: what is written is read once, in order; what is not a row is skipped and counted."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from takeup.errors import BadTrace
from takeup.training.stragglers.contract import CALL, Operation
from takeup.training.stragglers.watch.ring import CAPACITY, FIRST_ROW, ROW_WORDS, SIZE_BYTES, HeaderWord
from takeup.training.stragglers.watch.ring_reader import GroupPosition, RingCollector, RingReader, is_call, logs_of
from training.stragglers.watch.watched_rings import GROUP, add, new_ring


def test_calls_are_read_once_and_in_order(tmp_path: Path) -> None:
    ring = new_ring(tmp_path)
    reader = RingReader(tmp_path / "0-1.ring")
    for number in range(3):
        add(ring, number)

    first, second = reader.read(), reader.read()

    assert first["number"].tolist() == [0, 1, 2]
    assert (first["ended_ns"] - first["began_ns"]).tolist() == [5, 5, 5]
    assert len(second) == 0


def test_a_call_under_way_holds_back_what_comes_after_it(tmp_path: Path) -> None:
    ring = new_ring(tmp_path)
    reader = RingReader(tmp_path / "0-1.ring")
    add(ring, 0)
    row = add(ring, 1, ended=False)
    add(ring, 2)

    before = reader.read()
    ring.end(row, 2_000)
    after = reader.read()

    assert before["number"].tolist() == [0]
    assert after["number"].tolist() == [1, 2]
    assert after["ended_ns"][0] == 2_000


def test_a_call_whose_end_never_comes_is_given_as_it_is_after_a_while(tmp_path: Path) -> None:
    ring = new_ring(tmp_path)
    reader = RingReader(tmp_path / "0-1.ring")
    add(ring, 0, ended=False)

    assert len(reader.read(give_up_before_ns=1_000)) == 0
    assert reader.read(give_up_before_ns=1_001)["ended_ns"].tolist() == [0]


def test_rows_that_were_overwritten_are_counted_as_lost(tmp_path: Path) -> None:
    ring = new_ring(tmp_path)
    reader = RingReader(tmp_path / "0-1.ring")
    for number in range(CAPACITY + 7):
        add(ring, number)

    numbers = reader.read()["number"]

    # The oldest row is where the writer goes next: it is never trusted.
    assert numbers[-1] == CAPACITY + 6
    assert reader.num_lost + len(numbers) == CAPACITY + 7
    assert reader.num_lost in {7, 8}


def test_the_end_of_a_call_that_was_overwritten_harms_nobody(tmp_path: Path) -> None:
    ring = new_ring(tmp_path)
    row = add(ring, 0, ended=False)
    for number in range(1, CAPACITY + 1):
        add(ring, number)

    ring.end(row, 5)

    calls = RingReader(tmp_path / "0-1.ring").read()
    assert (calls["ended_ns"] - calls["began_ns"] == 5).all()


@given(st.data())
def test_garbage_in_some_rows_costs_these_rows_and_no_others(data: st.DataObject) -> None:
    rows = np.zeros((40, ROW_WORDS), np.int64)
    numbers = np.arange(40)
    rows[:] = np.stack([numbers, *np.array([1, -1, GROUP, 0, 64, 1_000, 1_005])[:, None].repeat(40, axis=1)], axis=1)
    broken = data.draw(st.sets(st.integers(0, 39)))
    for row in broken:
        rows[row] = data.draw(st.lists(st.integers(-(2**63), -1), min_size=ROW_WORDS, max_size=ROW_WORDS))

    assert set(np.flatnonzero(~is_call(rows, numbers)).tolist()) == broken


def test_garbage_is_skipped_with_a_count_and_reading_goes_on(tmp_path: Path) -> None:
    ring = new_ring(tmp_path)
    reader = RingReader(tmp_path / "0-1.ring")
    for number in range(5):
        add(ring, number)
    for column, noise in enumerate(np.random.default_rng(3).integers(-(2**62), 2**62, ROW_WORDS).tolist()):
        ring.words[FIRST_ROW + 2 * ROW_WORDS + column] = noise

    assert reader.read()["number"].tolist() == [0, 1, 3, 4]
    assert reader.num_bad == 1


@pytest.mark.parametrize("head", [-1, 2**60])
def test_a_head_that_makes_no_sense_gives_nothing(tmp_path: Path, head: int) -> None:
    ring = new_ring(tmp_path)
    add(ring, 0)
    ring.words[HeaderWord.HEAD] = head

    assert len(RingReader(tmp_path / "0-1.ring").read()) == 0


def test_a_file_that_is_no_ring_is_refused(tmp_path: Path) -> None:
    (tmp_path / "short.ring").write_bytes(b"hello")
    (tmp_path / "zeros.ring").write_bytes(bytes(SIZE_BYTES))

    with pytest.raises(BadTrace, match="is not a ring of calls; expected"):
        RingReader(tmp_path / "short.ring")
    with pytest.raises(BadTrace, match="of another version"):
        RingReader(tmp_path / "zeros.ring")


# All ranks ------------------------------------------------------------------------------------------------------------


def test_logs_have_all_ranks_and_their_groups(tmp_path: Path) -> None:
    for rank in range(3):
        add(new_ring(tmp_path, rank, 3), 0)
    gather = RingCollector(tmp_path)

    assert not gather.poll()
    logs = gather.read()

    assert gather.is_complete
    assert [log.rank for log in logs] == [0, 1, 2]
    assert all(log.groups == {GROUP: (0, 1, 2)} for log in logs)


def test_clocks_of_ranks_may_differ_by_hours(tmp_path: Path) -> None:
    for rank in range(2):
        add(new_ring(tmp_path, rank, 2), 0, skew_ns=rank * 3_600 * 10**9)
    gather = RingCollector(tmp_path)
    gather.poll()

    durations = [(log.calls["ended_ns"] - log.calls["began_ns"]).tolist() for log in gather.read()]

    assert durations == [[5], [5]]


def test_peers_are_global_ranks_in_the_logs() -> None:
    calls = np.zeros(2, CALL)
    calls["operation"], calls["peer"], calls["group"] = Operation.SEND, [1, -1], GROUP

    logs, unplaced = logs_of(
        {4: calls, 9: calls[:0]}, {4: {GROUP: GroupPosition(0, 2)}, 9: {GROUP: GroupPosition(1, 2)}}
    )

    assert logs[0].calls["peer"].tolist() == [9, -1]
    assert logs[0].groups == {GROUP: (4, 9)}
    assert unplaced == 0


def test_calls_of_groups_that_nobody_declared_are_left_out_and_counted() -> None:
    calls = np.zeros(3, CALL)
    calls["group"], calls["peer"] = [GROUP, 5, GROUP], [-1, -1, 1]

    logs, unplaced = logs_of({0: calls}, {0: {GROUP: GroupPosition(0, 2)}})

    assert len(logs[0].calls) == 1
    assert unplaced == 2


@pytest.mark.parametrize(("rank", "num_ranks"), [(0, 2), (2, 3)])
def test_another_number_of_ranks_or_the_same_rank_again_is_a_new_beginning(
    tmp_path: Path, rank: int, num_ranks: int
) -> None:
    for old in range(2):
        add(new_ring(tmp_path, old, 2), 0)
    gather = RingCollector(tmp_path)
    gather.poll()

    new_ring(tmp_path, rank, num_ranks, pid=2)

    assert gather.poll()
    assert sorted(gather.readers) == [rank]
    assert not gather.poll()


def test_a_file_that_is_not_ready_yet_is_read_later(tmp_path: Path) -> None:
    gather = RingCollector(tmp_path)
    (tmp_path / "0-1.ring").write_bytes(b"")
    assert not gather.poll()
    assert gather.num_ranks == 0

    (tmp_path / "0-1.ring").unlink()
    new_ring(tmp_path)
    gather.poll()

    assert gather.is_complete
