"""A site's own records: sacct as text and JSON, pods, and any table; labels are read, never drawn unasked."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from takeup.cluster.traces.records import SiteRecords, nodes_from, read_records
from takeup.cluster.traces.workload import TraceOptions
from takeup.errors import BadInput, BadTrace

SACCT = """JobID|Account|Partition|QOS|Submit|Start|End|State|AllocTRES
1|lab|gpu|normal|2026-11-01T00:00:00|2026-11-01T00:10:00|2026-11-01T02:10:00|COMPLETED|cpu=8,gres/gpu=8,gres/gpu:a100=8,node=1
1.batch|lab||||2026-11-01T00:10:00|2026-11-01T02:10:00|COMPLETED|cpu=8,gres/gpu=8
2|web|gpu|spot|2026-11-01T01:00:00|2026-11-01T01:00:00|2026-11-01T05:00:00|COMPLETED|gres/gpu=16,gres/gpu:a100=16
3|web|gpu|spot|2026-11-01T01:00:00|Unknown|Unknown|PENDING|
4|web|gpu|spot|2026-11-01T01:00:00|Unknown|Unknown|CANCELLED|gres/gpu=1
5|web|gpu|spot|2026-11-01T04:00:00|2026-11-01T04:00:00|Unknown|RUNNING|gres/gpu=1,gres/gpu:a100=1
"""


def read(path: Path, text: str, is_drawn: bool = False, nodes: str | None = None, **mapped: str) -> SiteRecords:
    path.write_text(text, "utf-8")
    options = TraceOptions(spot_share=0.5)
    return read_records(path, mapped, nodes_from(nodes) if nodes else None, options, is_drawn)


def test_sacct_text_gives_jobs_with_their_models_labels_and_durations(tmp_path: Path) -> None:
    site = read(tmp_path / "sacct.txt", SACCT)
    work = site.loaded.workload

    assert site.own_policy == "slurm"
    assert work.pools == ("a100",)
    assert work.job_kind.tolist() == [0, 1, 1]
    assert (work.job_gpus * work.job_workers).tolist() == [8, 16, 1]
    assert work.job_submit_s.tolist() == [0, 3600, 4 * 3600]
    assert work.job_duration_s.tolist() == [7200, 4 * 3600, 3600]  # the last one still runs when the record ends
    assert work.organisations == ("lab", "web")
    assert site.loaded.skipped == {"asks for no GPU": 1, "never started": 1}


def test_what_was_really_allocated_is_known_by_the_hour_and_sizes_the_fleet(tmp_path: Path) -> None:
    """Job 1 holds 8 GPUs from 0:10 to 2:10, job 2 16 from 1:00 to 5:00, job 5 one from 4:00 on."""
    site = read(tmp_path / "sacct.txt", SACCT)

    assert (site.allocated_gpu_s[:5] / 3600).tolist() == pytest.approx([8 * 50 / 60, 24, 16 + 8 / 6, 16, 17])
    assert site.loaded.workload.node_gpus.tolist() == [8, 8, 8]
    assert "3 nodes of 8 GPUs hold what ran at once" in " ".join(site.loaded.notes)


def test_sacct_json_reads_as_the_text(tmp_path: Path) -> None:
    def job(number: int, qos: str, start: int, end: int, gpus: int) -> dict[str, Any]:
        tres = [{"type": "cpu", "name": "", "count": 8}, {"type": "gres", "name": "gpu:h100", "count": gpus}]
        time = {"submission": 100, "start": {"set": True, "number": start}, "end": end}
        return {"job_id": number, "account": "a", "qos": qos, "time": time, "tres": {"allocated": tres}}

    jobs = [job(1, "normal", 100, 500, 4), job(2, "preemptible", 200, 700, 8), job(3, "normal", 0, 0, 8)]
    work = read(tmp_path / "sacct.json", json.dumps({"jobs": jobs})).loaded.workload

    assert work.pools == ("h100",)
    assert work.job_kind.tolist() == [0, 1]
    assert work.job_gpus.tolist() == [4, 8]
    assert work.job_duration_s.tolist() == [400, 500]


def test_pods_of_one_gang_are_the_workers_of_a_job(tmp_path: Path) -> None:
    def pod(name: str, job: str, priority: str) -> dict[str, Any]:
        begin, end = "2026-11-01T00:00:00Z", "2026-11-01T01:00:00Z"
        return {
            "metadata": {
                "name": name, "namespace": "ml", "creationTimestamp": begin,
                "labels": {"batch.kubernetes.io/job-name": job} if job else {},
            },
            "spec": {
                "priorityClassName": priority, "containers": [{"resources": {"limits": {"nvidia.com/gpu": "8"}}}],
            },
            "status": {"startTime": begin, "containerStatuses": [{"state": {"terminated": {"finishedAt": end}}}]},
        }  # fmt: skip

    pods = [pod("a-0", "a", "high"), pod("a-1", "a", "high"), pod("b", "", "spot")]
    site = read(tmp_path / "pods.json", json.dumps({"items": pods}))

    assert site.own_policy == "kube"
    assert site.loaded.workload.job_workers.tolist() == [2, 1]
    assert site.loaded.workload.job_gpus.tolist() == [8, 8]
    assert site.loaded.workload.job_kind.tolist() == [0, 1]


CHRONUS = "job_id,user,num_gpu,submit_time,duration,best_effort\n0,a,1,10,60,0\n1,b,8,20,30,1\n"


def test_a_label_column_of_a_table_is_read(tmp_path: Path) -> None:
    site = read(tmp_path / "jobs.csv", CHRONUS, nodes="4x8")

    assert site.loaded.workload.job_kind.tolist() == [0, 1]
    assert site.loaded.workload.num_nodes == 4
    assert "1 of 2 jobs are spot by the column 'best_effort'" in site.loaded.notes


def test_columns_can_be_mapped(tmp_path: Path) -> None:
    table = "when,cards,len,tier\n0,2,50,gold\n5,4,60,bronze\n"
    work = read(
        tmp_path / "jobs.csv", table, submit="when", gpus="cards", duration="len", spot="tier=bronze"
    ).loaded.workload

    assert work.job_kind.tolist() == [0, 1]
    assert work.job_gpus.tolist() == [2, 4]


def test_a_label_is_never_drawn_without_being_asked(tmp_path: Path) -> None:
    text = CHRONUS.replace("best_effort", "colour")

    with pytest.raises(BadTrace, match="does not say which jobs are spot"):
        read(tmp_path / "jobs.csv", text)
    with pytest.raises(BadTrace, match=r"qos: 'normal' 3 times.*--map spot=COLUMN=VALUE"):
        read(tmp_path / "sacct.txt", SACCT.replace("spot", "normal"))
    assert "with probability 0.5" in " ".join(read(tmp_path / "jobs.csv", text, is_drawn=True).loaded.notes)


@pytest.mark.parametrize(
    ("mapped", "error"),
    [({"submit": "begin"}, "has no column 'begin'"), ({"spot": "tier=low"}, "has no column 'tier'")],
)
def test_a_column_that_is_not_there_is_an_error(tmp_path: Path, mapped: dict[str, str], error: str) -> None:
    with pytest.raises(BadTrace, match=error):
        read(tmp_path / "jobs.csv", CHRONUS, False, None, **mapped)


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ('{"jobs": 5}', "another shape.*give the output of 'sacct -P'"),
        ('{"items": [null]}', "another shape"),
        ('{"jobs"', "it is not JSON"),
        (re.sub(r"gpu(:a100)?=", "gpu=9999999", SACCT), "a number of GPUs that no job has"),
    ],
)
def test_damage_is_an_error_about_the_file(tmp_path: Path, text: str, error: str) -> None:
    with pytest.raises(BadTrace, match=error):
        read(tmp_path / "records", text, is_drawn=True)


def test_a_job_a_century_from_the_others_is_left_out(tmp_path: Path) -> None:
    line = "9|web|gpu|spot|2026-11-01T01:00:00|2026-11-01T01:00:00|2926-11-01T05:00:00|COMPLETED|gres/gpu=1\n"
    site = read(tmp_path / "sacct.txt", SACCT.replace("Unknown|RUNNING", "2026-11-01T05:00:00|DONE") + line)

    assert site.loaded.skipped["is a century from the others"] == 1
    assert len(site.allocated_gpu_s) == 6


def test_nodes_are_read_from_a_size_or_from_sinfo(tmp_path: Path) -> None:
    path = tmp_path / "sinfo.json"
    path.write_text(json.dumps({"nodes": [{"name": "n0", "gres": "gpu:a100:8(S:0-1)"}, {"name": "n1", "gres": ""}]}))

    assert nodes_from("80x8") == {"gpu": (8,) * 80}
    assert nodes_from("a100=2x8,h100=1x4") == {"a100": (8, 8), "h100": (4,)}
    assert nodes_from(str(path)) == {"a100": (8,)}
    with pytest.raises(BadInput, match="write 80x8"):
        nodes_from("eighty")


def test_jobs_of_two_runs_count_once(tmp_path: Path) -> None:
    """A requeued job ran for one hour and then for two: three hours of work, submitted once."""
    rows = [
        "1|lab|gpu|spot|2026-11-01T00:00:00|2026-11-01T00:00:00|2026-11-01T01:00:00|PREEMPTED|gres/gpu=8",
        "1|lab|gpu|spot|2026-11-01T00:00:00|2026-11-01T03:00:00|2026-11-01T05:00:00|COMPLETED|gres/gpu=8",
        "2|lab|gpu|normal|2026-11-01T01:00:00|2026-11-01T01:00:00|2026-11-01T03:00:00|COMPLETED|gres/gpu=8",
    ]
    work = read(tmp_path / "sacct.txt", "\n".join([SACCT.splitlines()[0], *rows]) + "\n").loaded.workload

    assert np.array_equal(work.job_duration_s, [3 * 3600, 2 * 3600])
