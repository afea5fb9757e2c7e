"""Cells of traces: what is a number, a moment, missing; and what traces leave open, against plain loops."""

from __future__ import annotations

import gzip
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from takeup.cluster.traces import ColumnNames, TraceOptions, read_plain
from takeup.cluster.traces.workload import Field, JobColumns, most_usual_nodes, read_fields, split_gangs
from takeup.errors import BadTrace

GOOD, BAD = ["0", "1", "2.5", "1e3", " 7"], ["", "nan", "inf", "-inf", "x", "-1"]


def written(folder: Path, text: str, name: str = "t.csv") -> Path:
    (folder / name).write_text(text)
    return folder / name


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(GOOD + BAD), st.sampled_from(GOOD + BAD)), min_size=1, max_size=20))
def test_a_row_is_used_if_all_its_cells_are_and_counted_once_if_not(cells: list[tuple[str, str]]) -> None:
    with TemporaryDirectory() as folder:
        path = written(Path(folder), "a,b\n" + "".join(f'"{a}","{b}"\n' for a, b in cells))
        rows = read_fields(path, (Field("a", least=0), Field("b", least=0)))
    good = [(float(a), float(b)) for a, b in cells if a in GOOD and b in GOOD]

    assert list(zip(rows["a"].tolist(), rows["b"].tolist(), strict=True)) == good
    assert sum(rows.skipped.values()) == len(cells) - len(good)
    assert len(rows) == len(good)


def test_the_first_thing_wrong_with_a_row_is_what_counts(tmp_path: Path) -> None:
    rows = read_fields(written(tmp_path, "a,b\n,-1\n3,-1\n"), (Field("a"), Field("b", least=0)))

    assert rows.skipped == {"a is missing or not a finite number": 1, "b is not at least 0": 1}


def test_a_default_fills_empty_cells_and_missing_columns(tmp_path: Path) -> None:
    fields = (Field("a", default=4.0), Field("b", "text", default="none"), Field("c", default=9.0))
    rows = read_fields(written(tmp_path, "a,b\n,x\n1,\n"), fields)

    assert rows["a"].tolist() == [4, 1]
    assert rows["b"].tolist() == ["x", "none"]
    assert rows["c"].tolist() == [9, 9]


def test_a_default_survives_a_reading_cell_by_cell(tmp_path: Path) -> None:
    fields = (Field("a", default=4.0), Field("b"), Field("c", "text", default="none"))
    rows = read_fields(written(tmp_path, "a,b,c\n,1,\n2,oops,z\n"), fields)

    assert (rows["a"].tolist(), rows["b"].tolist(), rows["c"].tolist()) == ([4], [1], ["none"])


def test_text_that_is_needed_must_be_there(tmp_path: Path) -> None:
    rows = read_fields(written(tmp_path, "a,b\nx,1\n,2\n"), (Field("a", "text"), Field("b")))

    assert rows["b"].tolist() == [1]
    assert rows.skipped == {"a is missing": 1}


@pytest.mark.parametrize(
    ("cell", "seconds"),
    [
        ("12.5", 12.5),
        ("2024-03-01", datetime(2024, 3, 1, tzinfo=UTC).timestamp()),
        ("2024-03-01 08:30:00", datetime(2024, 3, 1, 8, 30, tzinfo=UTC).timestamp()),
        ("2024-03-01T08:30:00.5", datetime(2024, 3, 1, 8, 30, 0, 500_000, tzinfo=UTC).timestamp()),
        ("2024-03-01T08:30:00+08:00", datetime(2024, 3, 1, 0, 30, tzinfo=UTC).timestamp()),
    ],
)
def test_moments_are_seconds_or_dates_and_times(tmp_path: Path, cell: str, seconds: float) -> None:
    rows = read_fields(written(tmp_path, f"when,x\n{cell},1\n"), (Field("when", "moment"), Field("x")))

    assert rows["when"].tolist() == [seconds]


def test_a_strict_reading_takes_dates_and_refuses_numbers_that_are_none(tmp_path: Path) -> None:
    fields = (Field("when", "moment"), Field("x"))
    path = written(tmp_path, "when,x\n2024-03-01,1\n")
    wrong = written(tmp_path, "when,x\n2024-03-01,1\n2024-03-02,one\n", "w.csv")

    assert len(read_fields(path, fields, strict=True)) == 1
    with pytest.raises(BadTrace, match=r"w.csv, line 3, column 'x': 'one' is not a number"):
        read_fields(wrong, fields, strict=True)


def test_a_missing_column_is_an_error_however_lenient(tmp_path: Path) -> None:
    with pytest.raises(BadTrace, match=r"no column 'duration'; did you mean 'durations'\?"):
        read_fields(written(tmp_path, "durations\n1\n"), (Field("duration"),))


def test_damaged_gzip_is_an_error_and_no_empty_trace(tmp_path: Path) -> None:
    packed = gzip.compress(b"submit_s,duration_s,gpus\n" + b"0,60,1\n" * 5000)
    (tmp_path / "x.csv.gz").write_bytes(packed[: len(packed) // 2])

    with pytest.raises(BadTrace, match="fetch the file again"):
        read_plain(tmp_path / "x.csv.gz")


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadTrace, match=r"gone.csv: cannot be opened"):
        read_plain(tmp_path / "gone.csv")


def test_text_labels_and_numbers_tell_spot_jobs(tmp_path: Path) -> None:
    path = written(tmp_path, "submit_s,duration_s,gpus,k\n0,1,1,BE\n1,1,1,LS\n2,1,1,1\n3,1,1,0\n")

    kinds = read_plain(path, ColumnNames(kind="k")).workload.job_kind
    assert kinds.tolist() == [1, 0, 1, 0]


def test_checkpoints_and_guarantees_are_those_of_the_options(tmp_path: Path) -> None:
    path = written(tmp_path, "submit_s,duration_s,gpus,k\n0,1,1,spot\n1,1,1,prod\n")
    work = read_plain(path, ColumnNames(kind="k"), TraceOptions(guarantee_h=4.0, checkpoint_s=60.0)).workload

    assert work.job_guarantee_h.tolist() == [4, 0]
    assert work.job_checkpoint_s.tolist() == [60, 60]


# What traces leave open -----------------------------------------------------------------------------------------------


@given(st.integers(1, 600))
def test_workers_are_equal_fit_on_nodes_and_are_as_few_as_can_be(total: int) -> None:
    gpus, workers = split_gangs(np.array([float(total)]))
    fewest = next(count for count in range(1, total + 1) if total % count == 0 and total // count <= 8)

    assert gpus[0] * workers[0] == total
    assert workers[0] == fewest


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 40), st.integers(1, 30), st.integers(1, 8)), min_size=1, max_size=25))
def test_nodes_that_are_made_up_hold_the_usual_demand(jobs: list[tuple[int, int, int]]) -> None:
    hours, lengths, gpus = np.array(sorted(jobs), np.float64).T
    same = np.full(len(jobs), "p", np.object_)
    none, ones = np.zeros(len(jobs), np.bool_), np.ones(len(jobs), np.int64)
    nodes, _ = most_usual_nodes(JobColumns(none, same, same, gpus, ones, hours * 3600, lengths * 3600))
    first, last = int(hours.min()), int(hours.max())
    demand = [gpus[(hours <= hour) & (hour < hours + lengths)].sum() for hour in range(first, last + 1)]

    assert len(nodes["p"]) == np.ceil(max(np.quantile(demand, 0.95) / 8, 1))
