"""Trace files become workloads; rows that cannot be used are counted or refused by file, line and column."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest

from support.trace_tables import write_table
from takeup.cluster.model import Kind
from takeup.cluster.traces import ColumnNames, LoadedTrace, TraceOptions, read_plain, read_v2026
from takeup.cluster.traces.workload import split_gangs
from takeup.core.seeds import Streams
from takeup.errors import BadInput, BadTrace

NODES = "gpu_model,gpu_capacity_num,cpu_num,node_name\nA,8,96,0\nA,8,96,1\nB,1,32,2\n"
HEADER = "job_name,organization,gpu_model,cpu_request,gpu_request,worker_num,submit_time,duration,job_type\n"
GOOD = "j1,red,A,8,8,2,100,3600,HP\nj0,blue,B,4,0.5,1,50,60,Spot\n"


def read_jobs(folder: Path, rows: str, *, strict: bool = False) -> LoadedTrace:
    (folder / "nodes.csv").write_text(NODES)
    (folder / "jobs.csv").write_text(HEADER + rows)
    return read_v2026(folder / "jobs.csv", folder / "nodes.csv", TraceOptions(strict=strict))


def test_v2026_jobs_are_sorted_and_numbered(tmp_path: Path) -> None:
    loaded = read_jobs(tmp_path, GOOD)

    work = loaded.workload
    assert work.pools == ("A", "B")
    assert work.node_gpus.tolist() == [8, 8, 1]
    assert work.node_pool.tolist() == [0, 0, 1]
    assert work.organisations == ("blue", "red")
    assert work.job_kind.tolist() == [Kind.SPOT, Kind.HIGH]
    assert work.job_pool.tolist() == [1, 0]
    assert work.job_gpus.tolist() == [0.5, 8]
    assert work.job_workers.tolist() == [1, 2]
    assert work.job_submit_s.tolist() == [50, 100]
    assert work.job_duration_s.tolist() == [60, 3600]
    assert work.job_guarantee_h.tolist() == [1, 0]
    assert loaded.notes == ("rows were not in order of submission; they were sorted",)


@pytest.mark.parametrize(
    ("row", "reason", "column"),
    [
        ("j,red,A,8,8,1,,60,HP", "submit_time is missing or not a finite number", "submit_time"),
        ("j,red,A,8,8,1,-5,60,HP", "submit_time is not at least 0", "submit_time"),
        ("j,red,A,8,8,1,5,nan,HP", "duration is missing or not a finite number", "duration"),
        ("j,red,A,8,8,1,5,inf,HP", "duration is missing or not a finite number", "duration"),
        ("j,red,A,8,8,1,5,0,HP", "duration is not above 0", "duration"),
        ("j,red,A,8,8,1,5,soon,HP", "duration is missing or not a finite number", "duration"),
        ("j,red,A,8,-1,1,5,60,HP", "gpu_request is not above 0", "gpu_request"),
        ("j,red,A,8,1.5,1,5,60,HP", "gpu_request is above one and not a whole number", "gpu_request"),
        ("j,red,A,8,8,0,5,60,HP", "worker_num is not at least 1", "worker_num"),
        ("j,red,A,8,8,1.5,5,60,HP", "worker_num is not a whole number", "worker_num"),
        ("j,,A,8,8,1,5,60,HP", "organization is missing", "organization"),
        ("j,red,A,8,8,1,5,60,Batch", "job_type is neither HP nor Spot", "job_type"),
    ],
)
def test_a_row_that_cannot_be_used_is_counted_or_refused(tmp_path: Path, row: str, reason: str, column: str) -> None:
    loaded = read_jobs(tmp_path, f"{GOOD}{row}\n")

    assert dict(loaded.skipped) == {reason: 1}
    assert (loaded.num_rows, loaded.num_skipped, loaded.workload.num_jobs) == (3, 1, 2)
    with pytest.raises(BadTrace, match=rf"jobs.csv, line 4, column '{column}'"):
        read_jobs(tmp_path, f"{GOOD}{row}\n", strict=True)


def test_a_gpu_model_without_nodes_is_counted_or_refused(tmp_path: Path) -> None:
    rows = f"{GOOD}j,red,C,8,1,1,5,60,HP\n"

    assert dict(read_jobs(tmp_path, rows).skipped) == {"no node has this GPU model": 1}
    with pytest.raises(BadInput, match="1 jobs ask for GPUs of pools without nodes, the first for 'C'"):
        read_jobs(tmp_path, rows, strict=True)


def test_jobs_larger_than_their_pool_are_kept_and_counted(tmp_path: Path) -> None:
    loaded = read_jobs(tmp_path, f"{GOOD}j,red,A,8,8,3,5,60,HP\nj,red,B,8,2,1,5,60,HP\nj,red,B,1,0.5,2,5,60,HP\n")

    assert loaded.num_too_large == 2
    assert loaded.workload.num_jobs == 5


def test_a_missing_column_is_named(tmp_path: Path) -> None:
    (tmp_path / "nodes.csv").write_text(NODES)
    (tmp_path / "jobs.csv").write_text(HEADER.replace("duration", "length") + GOOD)

    with pytest.raises(BadTrace, match=r"jobs.csv: no column 'duration'"):
        read_v2026(tmp_path / "jobs.csv", tmp_path / "nodes.csv")


def test_gzip_and_parquet_are_read_alike(tmp_path: Path) -> None:
    rows = "submit_s,duration_s,gpus\n0,60,1\n30,90,16\n"
    (tmp_path / "jobs.csv").write_text(rows)
    (tmp_path / "jobs.csv.gz").write_bytes(gzip.compress(rows.encode()))
    columns = {"submit_s": np.array([0.0, 30.0]), "duration_s": np.array([60, 90]), "gpus": np.array([1, 16])}
    write_table(tmp_path / "jobs.parquet", columns)

    loaded = [read_plain(tmp_path / f"jobs.{end}").workload for end in ("csv", "csv.gz", "parquet")]
    assert [work.job_duration_s.tolist() for work in loaded] == [[60, 90]] * 3
    assert [work.job_workers.tolist() for work in loaded] == [[1, 2]] * 3


def test_columns_of_any_name_in_any_unit_of_time(tmp_path: Path) -> None:
    (tmp_path / "mine.csv").write_text("when,long,g,n,model,team,class\n60,2,4,3,A,red,prod\n61,1,1,1,B,blue,spot\n")
    names = ColumnNames("when", "long", gpus="g", workers="n", pool="model", organisation="team", kind="class")
    options = TraceOptions(nodes={"A": (8, 8), "B": (8,)}, time_unit_s=60.0)

    work = read_plain(tmp_path / "mine.csv", names, options).workload
    assert work.job_submit_s.tolist() == [0, 60]
    assert work.job_duration_s.tolist() == [120, 60]
    assert work.job_gpus.tolist() == [4, 1]
    assert work.job_workers.tolist() == [3, 1]
    assert work.job_kind.tolist() == [Kind.HIGH, Kind.SPOT]
    assert (work.name, work.pools, work.organisations) == ("mine", ("A", "B"), ("red", "blue"))


def test_dates_are_moments_and_an_end_gives_the_duration(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text(
        "a,b,gpus\n2024-03-01 00:00:00,2024-03-01T01:00:00,1\n"
        "2024-03-01 00:10:00+00:00,2024-03-01 00:09:00,1\nnever,5,1\n"
    )
    loaded = read_plain(tmp_path / "x.csv", ColumnNames("a", duration=None, end="b"))

    assert loaded.workload.job_duration_s.tolist() == [3600]
    assert dict(loaded.skipped) == {"a is missing or not a finite number": 1, "b is not after the beginning": 1}
    with pytest.raises(BadTrace, match=r"line 4, column 'a': 'never' is no moment"):
        read_plain(tmp_path / "x.csv", ColumnNames("a", duration=None, end="b"), TraceOptions(strict=True))


def test_without_labels_virtual_clusters_or_a_seeded_coin_decide(tmp_path: Path) -> None:
    lines = [f"{second},60,1,{'vc1' if second % 2 else 'vc2'}" for second in range(400)]
    (tmp_path / "x.csv").write_text("\n".join(["submit_s,duration_s,gpus,vc", *lines]))
    names = ColumnNames(organisation="vc")

    by_name = read_plain(tmp_path / "x.csv", names, TraceOptions(spot_organisations=("vc1",)))
    coins = [
        read_plain(tmp_path / "x.csv", names, TraceOptions(spot_share=0.3, streams=Streams(seed))) for seed in (1, 1, 2)
    ]
    kinds = [loaded.workload.job_kind.tolist() for loaded in coins]
    assert by_name.workload.job_kind.tolist() == [second % 2 for second in range(400)]
    assert by_name.notes[0] == "no spot label in the trace; jobs of vc1 are spot"
    assert kinds[0] == kinds[1] != kinds[2]
    assert np.mean(kinds[0]) == pytest.approx(0.3, abs=0.08)
    assert coins[2].notes[0] == "no spot label in the trace; each job is spot with probability 0.3, seed 2"
    with pytest.raises(BadInput, match="no job is of organisation 'vc9'"):
        read_plain(tmp_path / "x.csv", names, TraceOptions(spot_organisations=("vc9",)))


def test_without_nodes_the_pool_holds_usual_demand_and_the_largest_job(tmp_path: Path) -> None:
    busy = [f"{hour * 3600},7200,8" for hour in range(100)]
    (tmp_path / "x.csv").write_text("\n".join(["submit_s,duration_s,gpus", *busy, "360000,60,40"]))

    loaded = read_plain(tmp_path / "x.csv")
    assert loaded.workload.node_gpus.tolist() == [8] * 5
    assert loaded.num_too_large == 0
    assert loaded.notes[1].startswith("no list of nodes; 5 nodes of 8 GPUs")


def test_jobs_without_gpus_are_no_mistake(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text("submit_s,duration_s,gpus\n0,60,0\n1,60,2\n")

    assert dict(read_plain(tmp_path / "x.csv", options=TraceOptions(strict=True)).skipped) == {"asks for no GPU": 1}


def test_a_file_without_a_usable_row_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text("submit_s,duration_s,gpus\n0,60,0\n")

    with pytest.raises(BadInput, match="no row can be used"):
        read_plain(tmp_path / "x.csv")


@pytest.mark.parametrize(("gpus", "shape"), [(0.5, (0.5, 1)), (8, (8, 1)), (12, (6, 2)), (64, (8, 8)), (13, (1, 13))])
def test_gangs_are_split_into_equal_workers(gpus: float, shape: tuple[float, int]) -> None:
    per_worker, workers = split_gangs(np.array([gpus, 1.0]))

    assert (per_worker[0], workers[0]) == shape


def test_a_duration_or_an_end_must_be_named() -> None:
    with pytest.raises(BadInput, match="a column for its duration or one for its end"):
        ColumnNames(duration=None)


@pytest.mark.parametrize(
    ("options", "message"), [({"spot_share": 1.5}, "share of spot"), ({"time_unit_s": 0}, "unit of time")]
)
def test_options_that_make_no_sense_are_refused(options: dict[str, float], message: str) -> None:
    with pytest.raises(BadInput, match=message):
        TraceOptions(**options)  # type: ignore[arg-type]
