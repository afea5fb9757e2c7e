"""The journal: whatever happens, what was written is there, and what was half written is not."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

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
        journal.write({"do": "évincer", "job": "2"}, is_urgent=False)

    assert entries_of(tmp_path / "journal") == ({"do": "start", "job": "1"}, {"do": "évincer", "job": "2"})


@given(st.integers(0, 200))
def test_a_journal_cut_anywhere_keeps_its_whole_lines_and_can_go_on(tmp_path_factory: object, length: int) -> None:
    path = tmp_path_factory.mktemp("cut") / "journal"  # type: ignore[attr-defined]
    with Journal(path) as journal:
        for number in range(10):
            journal.write({"number": number}, is_urgent=False)
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
    path.write_bytes(b'{"a": 1}\n\xff\xfe\n[1, 2]\n{"a": 2}\n')

    with Journal(path) as journal:
        assert journal.entries == ({"a": 1}, {"a": 2})
        assert journal.num_damaged == 2


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
