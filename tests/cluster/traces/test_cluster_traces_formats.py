"""Public trace formats: openb, v2025, Philly and Helios, each recognised by its columns."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from support.trace_tables import write_table
from takeup.cluster.model import Kind
from takeup.cluster.traces import (
    LoadedTrace,
    TraceOptions,
    generate,
    read_openb,
    read_philly,
    read_trace,
    read_v2025,
)
from takeup.core.seeds import Streams
from takeup.errors import BadInput, BadTrace

PODS = "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,deletion_time,scheduled_time\n"
NODES = "sn,cpu_milli,memory_mib,gpu,model\nn0,64000,1,2,T4\nn1,64000,1,8,V100M16\nn2,64000,1,8,V100M32\nn3,9,1,0,\n"
SERVICES = "instance_sn,role,app_name,gpu_request,max_instance_per_node,creation_time,scheduled_time,deletion_time\n"
HELIOS = "job_id,user,vc,gpu_num,cpu_num,state,submit_time,start_time,end_time,duration\n"


def read_pods(folder: Path, rows: str, options: TraceOptions | None = None) -> LoadedTrace:
    (folder / "nodes.csv").write_text(NODES)
    (folder / "pods.csv").write_text(PODS + rows)
    return read_openb(folder / "pods.csv", folder / "nodes.csv", options)


# openb ----------------------------------------------------------------------------------------------------------------


def test_openb_best_effort_pods_are_spot_and_gpus_may_be_shared(tmp_path: Path) -> None:
    rows = "a,1,1,1,460,T4,LS,Running,100,700,200\nb,1,1,8,1000,V100M32,BE,Succeeded,150,300,150\n"
    work = read_pods(tmp_path, rows).workload

    assert work.pools == ("T4", "V100M16", "V100M32")
    assert work.node_gpus.tolist() == [2, 8, 8]
    assert work.job_kind.tolist() == [Kind.HIGH, Kind.SPOT]
    assert work.job_gpus.tolist() == [0.46, 8]
    assert work.job_pool.tolist() == [0, 2]
    assert work.job_submit_s.tolist() == [0, 50]
    assert work.job_duration_s.tolist() == [500, 150]


def test_openb_takes_the_first_model_that_has_nodes(tmp_path: Path) -> None:
    work = read_pods(tmp_path, "a,1,1,1,1000,P100|V100M16|V100M32,LS,Running,1,9,2\n").workload

    assert work.pools[work.job_pool[0]] == "V100M16"


def test_openb_draws_a_model_in_proportion_to_gpus_where_the_pod_fits(tmp_path: Path) -> None:
    rows = "".join(f"p{i},1,1,{1 if i % 2 else 4},1000,,LS,Running,{i},{i + 9},{i}\n" for i in range(2000))
    loaded, again = (read_pods(tmp_path, rows, TraceOptions(streams=Streams(8))) for _ in range(2))
    small, large = (np.bincount(loaded.workload.job_pool[start::2], minlength=3) / 1000 for start in (1, 0))

    assert small == pytest.approx([2 / 18, 8 / 18, 8 / 18], abs=0.05)
    assert large == pytest.approx([0, 0.5, 0.5], abs=0.05)
    assert loaded.notes == ("2000 pods name no GPU model; drawn by the GPUs of each, seed 8",)
    assert np.array_equal(loaded.workload.job_pool, again.workload.job_pool)


def test_openb_pods_that_cannot_be_used_are_counted(tmp_path: Path) -> None:
    rows = (
        "ok,1,1,1,1000,T4,LS,Running,1,9,2\n"
        "no-gpu,1,1,0,0,,LS,Running,1,9,2\n"
        "runs,1,1,1,1000,T4,LS,Running,1,,2\n"
        "odd,1,1,1,1000,T4,LS,Running,5,4,5\n"
        "waits,1,1,1,1000,T4,LS,Pending,5,9,\n"
        "model,1,1,1,1000,A100,LS,Running,1,9,2\n"
    )
    loaded = read_pods(tmp_path, rows)

    assert dict(loaded.skipped) == {
        "deletion_time is missing or not a finite number": 1,
        "asks for no GPU": 1,
        "was never scheduled": 1,
        "deletion_time is not after the beginning": 1,
        "no node has this GPU model": 1,
    }
    assert loaded.workload.num_jobs == 1
    with pytest.raises(BadTrace, match=r"pods.csv, line 4, column 'deletion_time'"):
        read_pods(tmp_path, rows, TraceOptions(strict=True))


# v2025 ----------------------------------------------------------------------------------------------------------------


def test_v2025_moments_outside_the_trace_are_its_beginning_and_its_end(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text(
        f"{SERVICES}always,HN,a,1,8,,,\nleft,HN,a,1,8,,,400\ncame,HN,b,2,8,100,150,\nboth,HN,b,1,8,200,300,1000\n"
    )
    loaded = read_v2025(tmp_path / "x.csv")
    work = loaded.workload

    assert work.job_submit_s.tolist() == [0, 0, 100, 200]
    assert work.job_duration_s.tolist() == [1000, 400, 850, 700]
    assert work.job_gpus.tolist() == [1, 1, 2, 1]
    assert [work.organisations[number] for number in work.job_organisation] == ["a", "a", "b", "b"]
    assert (work.job_kind == Kind.HIGH).all()
    assert "2 instances were still there when the trace ended, and are taken to end with it" in loaded.notes


def test_v2025_services_that_are_named_are_spot(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text(f"{SERVICES}i,HN,a,1,8,0,0,60\nj,HN,b,1,8,0,0,60\n")
    work = read_v2025(tmp_path / "x.csv", TraceOptions(spot_organisations=("b",))).workload

    assert work.job_kind.tolist() == [Kind.HIGH, Kind.SPOT]


def test_v2025_instances_that_cannot_be_used_are_counted(tmp_path: Path) -> None:
    rows = "ok,HN,a,1,8,0,0,60\ncpu,CN,a,0,-1,0,0,60\nwaits,HN,a,1,8,5,,60\nodd,HN,a,1,8,5,9,8\ntext,HN,a,x,8,0,0,60\n"
    rows += "when,HN,a,1,8,0,0,later\nopen,HN,a,1,8,20,20,\n"
    (tmp_path / "x.csv").write_text(SERVICES + rows)
    loaded = read_v2025(tmp_path / "x.csv")

    assert loaded.workload.job_duration_s.tolist() == [60, 40]
    assert loaded.skipped == {
        "gpu_request is missing or not a finite number": 1,
        "deletion_time is missing or not a finite number": 1,
        "asks for no GPU": 1,
        "was never scheduled": 1,
        "deletion_time is not after the beginning": 1,
    }


def test_v2025_read_strictly_names_the_first_wrong_row(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text(f"{SERVICES}ok,HN,a,1,8,0,0,60\nodd,HN,a,1,8,5,9,8\n")

    with pytest.raises(BadTrace, match="line 3, column 'deletion_time'"):
        read_v2025(tmp_path / "x.csv", TraceOptions(strict=True))


def test_v2025_without_a_gpu_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text(f"{SERVICES}cpu,CN,a,0,-1,0,0,60\n")

    with pytest.raises(BadInput, match="no row can be used"):
        read_v2025(tmp_path / "x.csv")


# Philly and Helios ----------------------------------------------------------------------------------------------------


def test_helios_virtual_clusters_are_organisations(tmp_path: Path) -> None:
    (tmp_path / "log.csv").write_text(
        f"{HELIOS}1,u1,vcA,16,8,COMPLETED,2020-04-01 00:00:10,2020-04-01 00:01:00,2020-04-01 01:01:00,3600\n"
        "2,u2,vcB,0,8,COMPLETED,2020-04-01 00:00:20,2020-04-01 00:01:00,2020-04-01 01:01:00,3600\n"
        "3,u3,vcB,1,8,FAILED,2020-04-01 00:01:10,None,None,0\n"
        "4,u3,vcB,1,8,COMPLETED,2020-04-01 00:01:10,None,None,30\n"
    )
    loaded = read_philly(tmp_path / "log.csv", TraceOptions(spot_organisations=("vcB",)))

    work = loaded.workload
    assert work.organisations == ("vcA", "vcB")
    assert work.job_submit_s.tolist() == [0, 60]
    assert (work.job_gpus * work.job_workers).tolist() == [16, 1]
    assert work.job_kind.tolist() == [Kind.HIGH, Kind.SPOT]
    assert dict(loaded.skipped) == {"duration is not above 0": 1, "asks for no GPU": 1}


@pytest.mark.parametrize(
    "text",
    [
        "vc,submitted_time,duration,num_gpus\nx,2017-10-03 05:36:00,60,4\ny,2017-10-03 05:37:00,90,8\n",
        "Virtual_Cluster,timestamp,run_time,GPUs\nx,1000,60,4\ny,1060,90,8\n",
        "user,submission_time,start_time,end_time,gpu_count\nx,0,30,90,4\ny,60,70,160,8\n",
    ],
)
def test_philly_style_tables_are_read_by_any_usual_name(tmp_path: Path, text: str) -> None:
    (tmp_path / "philly.csv").write_text(text)
    work = read_philly(tmp_path / "philly.csv").workload

    assert work.organisations == ("x", "y")
    assert work.job_submit_s.tolist() == [0, 60]
    assert work.job_duration_s.tolist() == [60, 90]
    assert work.job_gpus.tolist() == [4, 8]


def test_a_table_without_the_number_of_gpus_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text("submit_time,duration,cards\n0,60,4\n")

    with pytest.raises(BadTrace, match="no column for the number of GPUs; expected one of num_gpus"):
        read_trace(tmp_path / "x.csv")


def test_dates_are_read_from_parquet_too(tmp_path: Path) -> None:
    when = np.array(["2020-01-01 00:00:00", "2020-01-01 00:02:00"], np.object_)
    vc, ones = np.array(["a", "b"], np.object_), np.array([1, 2])
    write_table(tmp_path / "x.parquet", {"submit_time": when, "vc": vc, "gpu_num": ones, "duration": 60.0 * ones})

    assert read_philly(tmp_path / "x.parquet").workload.job_submit_s.tolist() == [0, 120]


def test_a_mistake_in_parquet_is_named_by_its_row(tmp_path: Path) -> None:
    columns = {"timestamp": np.array([0, 1]), "num_gpus": np.array([1.0, 1.5]), "duration": np.array([5, 5])}
    write_table(tmp_path / "x.parquet", columns)

    with pytest.raises(BadTrace, match=r"x.parquet, column 'num_gpus': row 2: num_gpus is above one"):
        read_philly(tmp_path / "x.parquet", TraceOptions(strict=True))
    assert read_philly(tmp_path / "x.parquet").num_skipped == 1


# Any of them ----------------------------------------------------------------------------------------------------------


def test_every_format_is_recognised_by_its_columns(tmp_path: Path) -> None:
    v2026 = "organization,gpu_model,gpu_request,worker_num,submit_time,duration,job_type\no,T4,1,1,5,60,Spot\n"
    (tmp_path / "job_info_df.csv").write_text(v2026)
    (tmp_path / "node_info_df.csv").write_text("gpu_model,gpu_capacity_num\nT4,1\n")
    (tmp_path / "pods.csv").write_text(f"{PODS}a,1,1,1,1000,T4,BE,Running,1,61,1\n")
    (tmp_path / "nodes.csv").write_text(NODES)
    (tmp_path / "helios.csv").write_text(f"{HELIOS}1,u,v,1,1,DONE,0,0,60,60\n")
    (tmp_path / "philly.csv").write_text("timestamp,duration,num_gpus\n0,60,1\n")
    (tmp_path / "services.csv").write_text(f"{SERVICES}i,HN,a,1,8,0,0,60\n")

    loaded = [
        read_trace(tmp_path),
        read_trace(tmp_path / "pods.csv", tmp_path / "nodes.csv"),
        read_trace(tmp_path / "helios.csv"),
        read_trace(tmp_path / "philly.csv"),
        read_trace(tmp_path / "services.csv"),
    ]
    assert [each.workload.name for each in loaded] == ["v2026", "pods", "helios", "philly", "services"]
    assert [each.workload.job_duration_s.tolist() for each in loaded] == [[60]] * 5


def test_a_missing_list_of_nodes_is_named(tmp_path: Path) -> None:
    (tmp_path / "pods.csv").write_text(f"{PODS}a,1,1,1,1000,T4,BE,Running,1,61,1\n")

    with pytest.raises(BadTrace, match=r"its list of nodes is not at .*openb_node_list_gpu_node.csv"):
        read_trace(tmp_path / "pods.csv")


def test_a_list_of_nodes_for_a_format_without_one_is_refused(tmp_path: Path) -> None:
    (tmp_path / "philly.csv").write_text("timestamp,duration,num_gpus\n0,60,1\n")

    with pytest.raises(BadInput, match="leave it out"):
        read_trace(tmp_path / "philly.csv", tmp_path / "nodes.csv")


def test_a_generated_fleet_survives_the_way_through_a_file(tmp_path: Path) -> None:
    made = generate("small", Streams(1))
    pools, teams = np.array(made.pools, np.object_), np.array(made.organisations, np.object_)
    columns = {
        "organization": teams[made.job_organisation],
        "gpu_model": pools[made.job_pool],
        "gpu_request": made.job_gpus,
        "worker_num": made.job_workers,
        "submit_time": made.job_submit_s,
        "duration": made.job_duration_s,
        "job_type": np.where(made.job_kind == Kind.SPOT, "Spot", "HP").astype(np.object_),
    }
    write_table(tmp_path / "job_info_df.csv", columns)
    write_table(tmp_path / "node_info_df.csv", {"gpu_model": pools[made.node_pool], "gpu_capacity_num": made.node_gpus})

    loaded = read_trace(tmp_path, options=TraceOptions(strict=True))
    for name in ("job_kind", "job_pool", "job_gpus", "job_workers", "job_submit_s", "job_duration_s", "node_gpus"):
        assert np.array_equal(getattr(loaded.workload, name), getattr(made, name))
    assert loaded.num_too_large == loaded.num_skipped == 0


@pytest.mark.parametrize(
    ("header", "cells", "num_spot"),
    [
        ("spot", ("true", "false", "TRUE"), 2),
        ("preemptible", ("1", "0", "0"), 1),
        ("QOS", ("normal", "spot", "normal"), 1),
        ("priority", ("high", "low", "high"), 1),
        ("priority", ("100", "1", "50"), 0),
    ],
)
def test_a_column_labels_spot_jobs(header: str, cells: tuple[str, ...], num_spot: int, tmp_path: Path) -> None:
    rows = "".join(f"{60 * place},1,500,{cell}\n" for place, cell in enumerate(cells))
    (tmp_path / "jobs.csv").write_text(f"submit_time,num_gpus,duration,{header}\n{rows}")
    loaded = read_trace(tmp_path / "jobs.csv")

    assert (loaded.workload.job_kind == Kind.SPOT).sum() == num_spot
    assert loaded.notes[0].startswith(f"{num_spot} jobs are spot by their column {header!r}")
    assert ("--spot-organisation" in loaded.notes[0]) is (num_spot == 0)


def test_gpu_models_are_pools_and_named_organisations_come_before_a_label(tmp_path: Path) -> None:
    (tmp_path / "jobs.csv").write_text(
        "submit_time,num_gpus,duration,gpu_model,organisation,qos\n0,1,500,A100,batch,normal\n9,1,500,H100,web,spot\n"
    )
    workload = read_trace(tmp_path / "jobs.csv", None, TraceOptions(spot_organisations=("batch",))).workload

    assert workload.pools == ("A100", "H100")
    assert workload.job_kind.tolist() == [Kind.SPOT, Kind.HIGH]
