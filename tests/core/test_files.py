"""Files are either whole or not there."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from takeup.core.files import write_atomically
from takeup.errors import OutputFailed


@pytest.mark.parametrize(
    ("content", "found"), [("text ü\n", "text ü\n".encode()), (b"\x00\xff", b"\x00\xff"), ("", b"")]
)
def test_text_and_bytes_are_written_as_they_are(tmp_path: Path, content: str | bytes, found: bytes) -> None:
    write_atomically(tmp_path / "file", content)

    assert (tmp_path / "file").read_bytes() == found


def test_folders_on_the_way_are_made(tmp_path: Path) -> None:
    write_atomically(tmp_path / "a" / "b" / "file", "x")

    assert (tmp_path / "a" / "b" / "file").read_text() == "x"


def test_an_older_file_is_replaced_and_nothing_else_is_left(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("old and longer")
    write_atomically(path, "new")

    assert path.read_text() == "new"
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]


def test_others_may_read_the_file(tmp_path: Path) -> None:
    write_atomically(tmp_path / "file", "x")

    assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == 0o644


@pytest.mark.parametrize("step", ["os.fsync", "Path.replace", "Path.chmod"])
def test_a_failure_leaves_the_older_file_and_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    path = tmp_path / "file"
    path.write_text("old")

    def fail(*arguments: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(f"takeup.core.files.{step}", fail)
    with pytest.raises(OutputFailed, match=r"cannot write .*file: No space left on device; nothing was left there"):
        write_atomically(path, "new")

    assert path.read_text() == "old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]


def test_an_interrupt_leaves_nothing_half_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(descriptor: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("takeup.core.files.os.fsync", interrupt)
    with pytest.raises(KeyboardInterrupt):
        write_atomically(tmp_path / "file", "new")

    assert list(tmp_path.iterdir()) == []


def test_the_bytes_are_on_disk_before_the_name_is_and_the_name_before_the_call_returns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[bool] = []
    flush = os.fsync

    def watch(descriptor: int) -> None:
        seen.append((tmp_path / "file").exists())
        flush(descriptor)

    monkeypatch.setattr("takeup.core.files.os.fsync", watch)
    write_atomically(tmp_path / "file", "x")

    assert seen == [False, True]


def test_a_folder_that_is_a_file_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")

    with pytest.raises(OutputFailed, match="choose another place"):
        write_atomically(tmp_path / "file" / "below", "y")


def test_a_target_that_is_a_folder_is_said(tmp_path: Path) -> None:
    with pytest.raises(OutputFailed, match="cannot write"):
        write_atomically(tmp_path, "x")

    assert list(tmp_path.iterdir()) == []
    assert [entry for entry in tmp_path.parent.iterdir() if entry.name.startswith(f".{tmp_path.name}.")] == []


def test_what_a_killed_writer_left_is_removed_by_a_later_process(tmp_path: Path) -> None:
    program = (
        "import os, sys, pathlib\n"
        "from takeup.core import files\n"
        "os.fsync = lambda _: os.kill(os.getpid(), 9)\n"
        "files.write_atomically(pathlib.Path(sys.argv[1]), 'x')\n"
    )
    subprocess.run([sys.executable, "-c", program, str(tmp_path / "report.json")], check=False)
    (left,) = tmp_path.iterdir()

    again = (
        "import pathlib, sys; from takeup.core.files import write_atomically as w; w(pathlib.Path(sys.argv[1]), 'y')"
    )
    subprocess.run([sys.executable, "-c", again, str(tmp_path / "young")], check=True)
    assert left.exists()  # its writer may still work
    os.utime(left, (0, 0))
    subprocess.run([sys.executable, "-c", again, str(tmp_path / "old")], check=True)

    assert sorted(path.name for path in tmp_path.iterdir()) == ["old", "young"]
