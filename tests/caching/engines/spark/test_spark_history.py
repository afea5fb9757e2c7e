"""Profiles from event logs: what the tasks of every job read, by signatures that the next run will have too."""

from __future__ import annotations

import gzip
import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from takeup.caching.engines.spark.event_log_profile import profile_of_events, write_profile
from takeup.errors import BadInput

LOGS = Path(__file__).parents[2] / "data"
MEMORY = {"Use Memory": True, "Use Disk": False}
NONE = {"Use Memory": False, "Use Disk": False}


def rdd(number: int, *parents: int, level: dict[str, bool] = NONE, partitions: int = 2) -> dict[str, Any]:
    return {
        "RDD ID": number,
        "Name": "MapPartitionsRDD",
        "Callsite": f"map at job.py:{number}",
        "Parent IDs": list(parents),
        "Storage Level": level,
        "Number of Partitions": partitions,
    }


def job(stage: int, *rdds: dict[str, Any]) -> dict[str, Any]:
    info = {
        "Stage ID": stage,
        "Number of Tasks": rdds[-1]["Number of Partitions"],
        "Parent IDs": [],
        "RDD Info": list(rdds),
    }
    return {"Event": "SparkListenerJobStart", "Job ID": stage, "Stage Infos": [info]}


def reads(profile: dict[str, Any], number: int) -> list[list[int]]:
    """What the tasks of a job read: (RDD, partition) pairs in one list per task."""
    return [task[2:] for task in profile["jobs"][number]["tasks"]]


def test_a_persisted_rdd_is_read_by_the_jobs_after_the_one_that_makes_it() -> None:
    cached = rdd(1, 0, level=MEMORY)

    profile = profile_of_events([job(0, rdd(0), cached), job(1, rdd(0), cached, rdd(2, 1))])

    assert reads(profile, 0) == []
    assert reads(profile, 1) == [[0, 0], [0, 1]]
    assert len(profile["rdds"]) == 1


def test_a_task_reads_its_blocks_together() -> None:
    left, right = rdd(0, level=MEMORY), rdd(1, level=MEMORY)

    profile = profile_of_events([job(0, left), job(1, right), job(2, left, right, rdd(2, 0, 1))])

    assert [sorted(zip(task[::2], task[1::2], strict=True)) for task in reads(profile, 2)] == [
        [(0, 0), (1, 0)],
        [(0, 1), (1, 1)],
    ]


def test_after_unpersist_nothing_is_read() -> None:
    cached = rdd(0, level=MEMORY)
    unpersist = {"Event": "SparkListenerUnpersistRDD", "RDD ID": 0}

    profile = profile_of_events([job(0, cached), unpersist, job(1, rdd(0), rdd(1, 0))])

    assert reads(profile, 1) == []


def test_a_parent_with_another_number_of_partitions_ends_the_walk() -> None:
    cached = rdd(0, level=MEMORY, partitions=4)

    profile = profile_of_events([job(0, cached), job(1, cached, rdd(1, 0, partitions=2))])

    assert reads(profile, 1) == []


def test_a_signature_says_operator_call_site_partitions_parents_and_which_one() -> None:
    cached = rdd(0, level=MEMORY)

    profile = profile_of_events([job(0, cached), job(1, cached, rdd(1, 0))])

    text = "MapPartitionsRDD|map at job.py:0|2|"
    assert profile["rdds"] == [f"{hashlib.sha256(text.encode()).hexdigest()[:16]}#1"]


def test_equal_rdds_are_told_apart_by_their_number() -> None:
    twins = [rdd(number, level=MEMORY) | {"Callsite": "map at job.py:1"} for number in (0, 1)]

    profile = profile_of_events([job(0, twins[0]), job(1, twins[1]), job(2, *twins, rdd(2, 0, 1))])

    first, second = sorted(profile["rdds"])
    assert first.partition("#")[0] == second.partition("#")[0]
    assert first.endswith("#1")
    assert second.endswith("#2")


def test_positions_grow_with_what_is_read() -> None:
    cached = rdd(0, level=MEMORY)

    profile = profile_of_events([job(0, cached), job(1, cached, rdd(1, 0)), job(2, cached, rdd(2, 0))])

    positions = [task[1] for number in (1, 2) for task in profile["jobs"][number]["tasks"]]
    assert positions == sorted(positions)
    assert len(set(positions)) == 4


def events(name: str) -> Iterator[dict[str, Any]]:
    """The events of a log in the tree; call sites were taken out of these."""
    with gzip.open(LOGS / name, "rt") as lines:
        for line in lines:
            event = json.loads(line)
            for info in (info for stage in event.get("Stage Infos", []) for info in stage["RDD Info"]):
                info.setdefault("Callsite", "")
            yield event


def test_the_same_job_twice_reads_twice_but_a_shuffle_is_written_once() -> None:
    cached = rdd(0, level=MEMORY)
    first, second = job(0, cached), job(1, cached)
    again = job(3, rdd(2))
    again["Stage Infos"].insert(0, job(2, cached, rdd(1, 0))["Stage Infos"][0])

    profile = profile_of_events([first, second, again, json.loads(json.dumps(again))])

    assert [len(reads(profile, number)) for number in range(4)] == [0, 2, 2, 0]


@pytest.mark.parametrize("name", ["pagerank.eventlog.gz", "pagerank-3.5.eventlog.gz", "union.eventlog.gz"])
def test_real_logs_become_profiles(name: str, tmp_path: Path) -> None:
    target = tmp_path / "app.profile"

    write_profile(target, events(name))

    profile = json.loads(target.read_text())
    assert profile["format"] == 1
    assert any(found["tasks"] for found in profile["jobs"])
    numbers = [number for found in profile["jobs"] for task in found["tasks"] for number in task[2::2]]
    assert set(numbers) == set(range(len(profile["rdds"])))


@pytest.mark.parametrize(
    ("log", "problem"),
    [
        ([], "no job"),
        ([{"Event": "SparkListenerJobStart"}], "Stage Infos"),
        ([{"No event": 1}], "Event"),
    ],
)
def test_what_is_no_log_is_refused_in_one_sentence(log: list[dict[str, Any]], problem: str) -> None:
    with pytest.raises(BadInput, match=problem):
        profile_of_events(log)
