"""The journal: whatever happens, what was written is there, and what was half written is not."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from takeup.cluster.engines.slurm.journal import Journal
from takeup.errors import BadInput, OutputFailed


def entries_of(path: Path) -> tuple[object, ...]:
    with Journal(path) as journal:
        return journal.entries


def test_a_new_journal_is_empty(tmp_path: Path) -> None:
    assert entries_of(tmp_path / "deep" / "journal") == ()


def test_what_was_written_is_read_again_in_order(tmp_path: Path) -> None:
    with Journal(tmp_path / "journal") as journal:
        journal.write({"do": "start", "job": "1"})
        journal.write({"do": "évincer", "job": "2"})

    assert entries_of(tmp_path / "journal") == ({"do": "start", "job": "1"}, {"do": "évincer", "job": "2"})


@given(st.integers(0, 200))
def test_a_journal_cut_anywhere_keeps_its_whole_lines_and_can_go_on(tmp_path_factory: object, length: int) -> None:
    path = tmp_path_factory.mktemp("cut") / "journal"  # type: ignore[attr-defined]
    with Journal(path) as journal:
        for number in range(10):
            journal.write({"number": number})
    whole = path.read_bytes()
    path.write_bytes(whole[:length])
    num_lines = whole[:length].count(b"\n")

    with Journal(path) as journal:
        assert [entry["number"] for entry in journal.entries] == list(range(num_lines))
        journal.write({"number": 99})

    assert entries_of(path)[-1] == {"number": 99}
    assert len(entries_of(path)) == num_lines + 1


def test_a_damaged_line_is_left_out_and_counted(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    path.write_bytes(b'{"a": 1}\n\xff\xfe\n[1, 2]\n' + b"[" * 100_000 + b'\n{"a": 2}\n')

    with Journal(path) as journal:
        assert journal.entries == ({"a": 1}, {"a": 2})
        assert journal.num_damaged == 3


def test_entries_that_were_written_together_are_read_together_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    with Journal(path) as journal:
        journal.write({"number": 1})
        journal.write({"number": 2}, {"number": 3})
    whole = path.read_bytes()

    for length in range(whole.index(b"\n") + 1, len(whole)):
        path.write_bytes(whole[:length])
        assert entries_of(path) == ({"number": 1},)
    path.write_bytes(whole)
    assert entries_of(path) == ({"number": 1}, {"number": 2}, {"number": 3})


def test_only_one_controller_may_hold_it(tmp_path: Path) -> None:
    with Journal(tmp_path / "journal"), pytest.raises(BadInput, match="another controller"):
        Journal(tmp_path / "journal")


def test_a_lock_that_a_killed_controller_left_to_a_child_is_waited_for(tmp_path: Path) -> None:
    left = (tmp_path / "journal.lock").open("w")
    fcntl.flock(left, fcntl.LOCK_EX)
    threading.Timer(0.2, left.close).start()

    assert entries_of(tmp_path / "journal") == ()


def test_a_controller_that_was_killed_holds_it_no_longer(tmp_path: Path) -> None:
    program = (
        "import sys, time, pathlib\n"
        "from takeup.cluster.engines.slurm.journal import Journal\n"
        "journal = Journal(pathlib.Path(sys.argv[1]))\n"
        "journal.write({'do': 'evict'})\n"
        "print('written', flush=True)\n"
        "time.sleep(60)\n"
    )
    path = tmp_path / "journal"
    with subprocess.Popen([sys.executable, "-c", program, str(path)], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"written\n"
        os.kill(process.pid, signal.SIGKILL)

    assert entries_of(path) == ({"do": "evict"},)


def test_a_long_journal_can_be_shortened_and_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    with Journal(path) as journal:
        journal.write({"number": 1})
        journal.shorten([{"number": 2}])
        journal.write({"number": 3})

    assert entries_of(path) == ({"number": 2}, {"number": 3})


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    with pytest.raises(OutputFailed, match="cannot keep a journal"):
        Journal(tmp_path / "file" / "journal")


# Disks that fail ------------------------------------------------------------------------------------------------------


class FailingDisk:
    """Makes the n-th system call that a journal needs fail; a short write leaves half of the data."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, fail_at: int, code: int, *, cannot_cut: bool = False) -> None:
        self.num_calls, self.fail_at, self.code = 0, fail_at, code
        for name in ("write", "fsync"):
            monkeypatch.setattr(os, name, self._wrapped(name, getattr(os, name)))
        if cannot_cut:
            monkeypatch.setattr(os, "ftruncate", self._refuse)

    def _wrapped(self, name: str, call: Callable[..., int]) -> Callable[..., Any]:
        def wrapped(file: int, *data: bytes) -> Any:
            self.num_calls += 1
            if self.num_calls != self.fail_at:
                return call(file, *data)
            if name == "write":
                call(file, data[0][: len(data[0]) // 2])
            return self._refuse()

        return wrapped

    def _refuse(self, *_: object) -> None:
        raise OSError(self.code, os.strerror(self.code))


def write_twenty(path: Path) -> list[int]:
    """Twenty entries, some together; the numbers of those that were not refused."""
    acknowledged: list[int] = []
    with Journal(path) as journal:
        for number in range(0, 20, 2):
            with suppress(OutputFailed):
                journal.write({"number": number}, {"number": number + 1})
                acknowledged += [number, number + 1]
    return acknowledged


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
@pytest.mark.parametrize("fail_at", range(2, 23))  # the first syncs what is read
def test_an_entry_that_was_refused_is_never_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fail_at: int, code: int
) -> None:
    disk = FailingDisk(monkeypatch, fail_at, code)
    acknowledged = write_twenty(tmp_path / "journal")

    assert disk.num_calls >= fail_at
    assert [entry["number"] for entry in entries_of(tmp_path / "journal")] == acknowledged  # type: ignore[index]
    assert len(acknowledged) == 18


def test_a_journal_that_cannot_be_synced_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "journal").write_text('{"do": "evict"}\n')
    FailingDisk(monkeypatch, 1, errno.EIO)
    with pytest.raises(OutputFailed, match="cannot keep a journal"):
        Journal(tmp_path / "journal")

    assert entries_of(tmp_path / "journal") == ({"do": "evict"},)


def test_a_disk_that_cannot_even_be_cut_back_refuses_all_that_follows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    FailingDisk(monkeypatch, 4, errno.EIO, cannot_cut=True)
    journal = Journal(tmp_path / "journal")

    for _ in range(3):
        with pytest.raises(OutputFailed, match="it is unknown whether the next controller reads this entry"):
            journal.write({"do": "evict"})
    with pytest.raises(OutputFailed, match="an entry that was refused"):
        journal.close()


def test_the_lock_is_released_even_if_closing_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    FailingDisk(monkeypatch, 4, errno.ENOSPC, cannot_cut=True)
    journal = Journal(tmp_path / "journal")
    with pytest.raises(OutputFailed):
        journal.write({"do": "evict"})
    with pytest.raises(OutputFailed):
        journal.close()
    monkeypatch.undo()

    with Journal(tmp_path / "journal") as again:
        again.write({"do": "start"})


def test_a_journal_that_cannot_be_shortened_goes_on_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Journal(tmp_path / "journal") as journal:
        journal.write({"number": 1})
        FailingDisk(monkeypatch, 1, errno.ENOSPC)
        with pytest.raises(OutputFailed):
            journal.shorten([])
        journal.write({"number": 2})

    assert entries_of(tmp_path / "journal") == ({"number": 1}, {"number": 2})
