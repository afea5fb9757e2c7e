"""Rows of Slurm's JSON, as a real one printed them and in the form of newer versions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from takeup.cluster.engines.slurm.rows import (
    NEVER,
    GpuRequest,
    JobRow,
    JobStatus,
    NodeRow,
    expand_hosts,
    read_job,
    read_node,
)

RECORDED = Path(__file__).parent / "recorded"


def recorded_jobs() -> dict[str, JobRow]:
    rows = json.loads((RECORDED / "squeue.json").read_text("utf-8"))["jobs"]
    return {job.id: job for row in rows for job in read_job(row)}


def modern(row: dict[str, Any]) -> dict[str, Any]:
    """The same row as Slurm 23.11 and later print it."""
    numbers = ("priority", "submit_time", "start_time", "eligible_time", "node_count", "tasks")
    wrapped = {name: {"set": True, "infinite": False, "number": row[name] or 0} for name in numbers}
    return {**row, **wrapped, "job_state": [row["job_state"]]}


def test_a_held_job_waits_for_us() -> None:
    job = recorded_jobs()["11"]

    assert (job.status, job.qos, job.account) == (JobStatus.HELD, "spot", "search")
    assert job.ask == GpuRequest("a100", 2, 1, is_apart=True)
    assert job.comments == ("", "takeup guarantee_h=1")


def test_a_gang_shows_its_nodes_and_the_gpus_on_each() -> None:
    job = recorded_jobs()["13"]

    assert (job.status, job.nodes, job.gpus_on) == (JobStatus.RUNNING, ("n4", "n5"), (8, 8))
    assert job.ask == GpuRequest("", 8, 2, is_apart=True)


def test_tasks_with_gpus_are_workers_that_may_share_a_node() -> None:
    job = recorded_jobs()["14"]

    assert job.ask == GpuRequest("", 2, 3, is_apart=False)
    assert (job.nodes, job.gpus_on) == (("n7",), (6,))


def test_gpus_of_a_whole_job_are_those_of_its_one_worker() -> None:
    assert recorded_jobs()["15"].ask == GpuRequest("", 2, 1, is_apart=True)


def test_a_job_without_gpus_asks_for_nothing() -> None:
    assert recorded_jobs()["17"].ask is None


def test_an_evicted_job_is_held_and_counts_its_restart() -> None:
    job = recorded_jobs()["10"]

    assert (job.status, job.num_restarts, job.required_nodes) == (JobStatus.HELD, 1, ("n3",))


def test_a_job_on_its_way_out_is_neither_running_nor_waiting() -> None:
    assert recorded_jobs()["30"].status == JobStatus.LEAVING


def test_a_cancelled_job_is_over() -> None:
    assert recorded_jobs()["8"].status == JobStatus.OVER


def test_tasks_of_an_array_that_wait_are_jobs_of_their_own() -> None:
    jobs = recorded_jobs()

    assert {name for name in jobs if name.startswith("84")} == {"84_0", "84_1", "84_2", "84_3"}
    assert (jobs["84_2"].num_restarts, jobs["84_0"].num_restarts) == (1, 0)


def test_a_job_names_those_it_depends_on_until_they_are_over() -> None:
    assert recorded_jobs()["86"].depends_on == ("83",)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("afterok:5(unfulfilled),afterany:6_7(unfulfilled)", ("5", "6")),
        ("afterok:5(unfulfilled)?afternotok:6(failed)", ("5", NEVER)),
        ("afternotok:88(failed)", (NEVER,)),
        ("singleton(unfulfilled)", ()),
        ("", ()),
    ],
)
def test_what_a_job_depends_on(text: str, found: tuple[str, ...]) -> None:
    row = json.loads((RECORDED / "squeue.json").read_text("utf-8"))["jobs"][0]

    assert next(read_job({**row, "dependency": text})).depends_on == found


def test_newer_versions_say_the_same_in_other_words() -> None:
    rows = json.loads((RECORDED / "squeue.json").read_text("utf-8"))["jobs"]

    assert [list(read_job(modern(row))) for row in rows] == [list(read_job(row)) for row in rows]


def test_a_running_job_that_is_completing_is_on_its_way_out() -> None:
    row = json.loads((RECORDED / "squeue.json").read_text("utf-8"))["jobs"][1]

    assert next(read_job({**row, "job_state": ["RUNNING", "COMPLETING"]})).status == JobStatus.LEAVING


@pytest.mark.parametrize(
    ("resources", "ask"),
    [
        ({"tres_per_node": "gres:gpu"}, GpuRequest("", 1, 1, is_apart=True)),
        ({"tres_per_node": "gres/gpu:h800=4"}, GpuRequest("h800", 4, 1, is_apart=True)),
        ({"tres_per_node": "gres:gpu:4,gres:nic:1"}, GpuRequest("", 4, 1, is_apart=True)),
        ({"tres_per_node": "gres:gpu:a100:1,gres:gpu:h800:1"}, None),
        ({"tres_per_job": "gres:gpu:16", "node_count": 2}, GpuRequest("", 8, 2, is_apart=True)),
        ({"tres_per_job": "gres:gpu:5", "node_count": 2}, None),
        ({"tres_per_node": "gres:craynetwork:1"}, None),
        ({"tres_per_node": "gres:gpu:0"}, None),
    ],
)
def test_how_gpus_are_asked_for(resources: dict[str, object], ask: GpuRequest | None) -> None:
    row = {"job_id": 1, "job_state": "PENDING", "priority": 0, **resources}

    assert next(read_job(row)).ask == ask


def test_without_details_gpus_are_spread_evenly() -> None:
    row = {"job_id": 1, "job_state": "RUNNING", "nodes": "n[0-1]", "tres_alloc_str": "cpu=2,gres/gpu=8"}

    assert next(read_job(row)).gpus_on == (4, 4)


def test_a_node_has_a_model_and_a_number_of_gpus() -> None:
    rows = json.loads((RECORDED / "sinfo.json").read_text("utf-8"))["nodes"]

    assert read_node(rows[0]) == NodeRow("n0", "a100", 8, True, ("all",))


@pytest.mark.parametrize(
    ("gres", "node"),
    [
        ("gpu:8", NodeRow("n", "gpu", 8, is_fit=True)),
        ("gpu:a100:8(S:0-1),nic:2", NodeRow("n", "a100", 8, is_fit=True)),
        ("gpu:a100:4,gpu:h800:4", None),
        ("", None),
        ("(null)", None),
    ],
)
def test_gpus_of_a_node(gres: str, node: NodeRow | None) -> None:
    assert read_node({"name": "n", "gres": gres, "state": "idle"}) == node


@pytest.mark.parametrize(
    ("state", "flags", "is_fit"),
    [
        ("mixed", [], True),
        ("allocated", ["COMPLETING"], True),
        ("idle", ["DRAIN"], False),
        ("down", [], False),
        (["IDLE", "NOT_RESPONDING"], None, False),
        (["MIXED", "PLANNED"], None, True),
        ("idle+drain", [], False),
        ("idle*", [], True),
    ],
)
def test_a_node_is_fit_unless_something_is_wrong(state: object, flags: object, is_fit: bool) -> None:
    node = read_node({"name": "n", "gres": "gpu:1", "state": state, "state_flags": flags})

    assert node is not None
    assert node.is_fit == is_fit


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("n1", ["n1"]),
        ("n[4-5]", ["n4", "n5"]),
        ("gpu[008-010,12],login", ["gpu008", "gpu009", "gpu010", "gpu12", "login"]),
        ("r[1-2]n[0,3]", ["r1n0", "r1n3", "r2n0", "r2n3"]),
        ("a[1-3]-ib,b", ["a1-ib", "a2-ib", "a3-ib", "b"]),
        ("", []),
    ],
)
def test_lists_of_hosts_are_expanded(text: str, names: list[str]) -> None:
    assert list(expand_hosts(text)) == names


@given(st.lists(st.integers(0, 999), min_size=1, max_size=20))
def test_a_list_of_numbers_in_brackets_is_what_it_was_made_from(numbers: list[int]) -> None:
    text = f"n[{','.join(map(str, numbers))}]"

    assert list(expand_hosts(text)) == [f"n{number}" for number in numbers]


@pytest.mark.parametrize(
    ("text", "num"),
    [
        ("n[0-999999999]", 10_000),
        ("n[0-9]" + "[0-9]" * 400, 0),
        ("n[1-3:0]", 3),
        ("n[²]", 0),
        ("n[" + "9" * 5000 + "]", 0),
    ],
)
def test_a_list_of_hosts_from_a_comment_has_an_end(text: str, num: int) -> None:
    assert len(list(expand_hosts(text))) == num
