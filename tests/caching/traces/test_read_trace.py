"""One function for trace files of every kind: the name and the columns say which reader it is for."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from takeup.caching.traces import read_trace
from takeup.errors import BadTrace

DATA = Path(__file__).parents[1] / "data"
TASKS = "task,inputs,outputs,output_bytes\nload,,a,5\nread,a,,\n"


def written(path: Path, text: str) -> Path:
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return path


@pytest.mark.parametrize("name", ["jobs.csv", "jobs.csv.gz", "JOBS.CSV"])
def test_a_table_with_a_column_task_is_a_job_graph(tmp_path: Path, name: str) -> None:
    data, notes = read_trace(written(tmp_path / name, TASKS))

    assert (data.num_tasks, data.num_accesses, data.working_set_bytes, notes) == (2, 1, 5, ())


@pytest.mark.parametrize(("name", "version"), [("zip.eventlog", "4.3.0"), ("pagerank-3.5.eventlog.gz", "3.5.9")])
def test_everything_else_is_an_event_log_and_says_of_what(name: str, version: str) -> None:
    _, notes = read_trace(DATA / name)

    assert notes[0].startswith(f"Spark {version}, application '")


def test_a_log_that_ends_in_mid_line_is_read_when_that_is_allowed(tmp_path: Path) -> None:
    whole = (DATA / "zip.eventlog").read_bytes()
    (tmp_path / "cut").write_bytes(whole[:-20])
    with pytest.raises(BadTrace, match="--allow-truncated"):
        read_trace(tmp_path / "cut")
    _, notes = read_trace(tmp_path / "cut", allow_truncated=True)

    assert any("is cut in the middle and left out" in note for note in notes)


def test_a_file_that_is_nothing_of_the_kind_is_said(tmp_path: Path) -> None:
    with pytest.raises(BadTrace, match="every line of a Spark event log is one JSON event"):
        read_trace(written(tmp_path / "letter.txt", "Dear all,\nhere is the trace.\n"))


@pytest.mark.parametrize("name", ["none.csv", "none"])
def test_a_file_that_is_not_there_is_said(tmp_path: Path, name: str) -> None:
    with pytest.raises(BadTrace, match=name):
        read_trace(tmp_path / name)
