"""Spark event logs: real ones with groups known from the program, and everything a file may get wrong."""

from __future__ import annotations

import errno
import gzip
import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from takeup.caching.model import Workload
from takeup.caching.traces.spark_event_log import EventLog, read_event_log
from takeup.errors import BadTrace, TakeupError

DATA = Path(__file__).parents[1] / "data"
Event = dict[str, Any]
Groups = list[tuple[tuple[int, ...], tuple[int, ...]]]


def groups(workload: Workload) -> Groups:
    return [(task.inputs, task.outputs) for task in workload.tasks()]


def makes(*blocks: int) -> Groups:
    return [((), (block,)) for block in blocks]


def reads(*blocks: tuple[int, ...]) -> Groups:
    return [(together, ()) for together in blocks]


# Real logs ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "version"), [("pagerank", "4.3.0"), ("pagerank-3.5", "3.5.9")])
def test_pagerank_reads_links_and_the_ranks_of_the_iteration_before_together(name: str, version: str) -> None:
    log = read_event_log(DATA / f"{name}.eventlog.gz")

    nothing: Groups = [((), ())] * 4
    expected = nothing + makes(0, 1, 2, 3) + makes(4, 5, 6, 7)
    for ranks in (4, 8, 12):
        expected += reads(*((part, ranks + part) for part in range(4))) + makes(*range(ranks + 4, ranks + 8))
    expected += reads((16,), (17,), (18,), (19,))
    assert groups(log.workload) == expected
    assert (log.application, log.spark_version, log.notes) == ("pagerank", version, ())
    assert log.workload.name == "pagerank"
    assert log.workload.block_bytes[:8].tolist() == [914, 906, 910, 904, 414, 407, 410, 404]
    assert log.workload.stage_after.tolist() == [-1, 0, 1, 2, 3, 4, 5, 6, 7, 8]
    assert log.workload.task_job.tolist() == [0] * 12 + [1] * 8 + [2] * 8 + [3] * 8 + [4] * 4


def test_zip_reads_the_same_partition_of_both_sides() -> None:
    workload = read_event_log(DATA / "zip.eventlog").workload

    one = makes(0, 1, 2, 3) + makes(4, 5, 6, 7) + reads((0, 4), (1, 5), (2, 6), (3, 7))
    other = makes(8, 9, 10, 11) + makes(12, 13, 14, 15) + reads((8, 12), (9, 13), (10, 14), (11, 15))
    assert groups(workload) == one + other
    assert workload.block_bytes[:5].tolist() == [4214, 4212, 4212, 4212, 4213]
    assert workload.task_compute_s[:3].tolist() == [1.296, 1.373, 0.12]
    assert workload.task_stage.tolist() == [stage for stage in range(6) for _ in range(4)]


def test_blocks_live_on_the_executor_that_made_them_and_sizes_not_logged_are_assumed() -> None:
    log = read_event_log(DATA / "zip-two-executors.eventlog.gz")

    workload = log.workload
    assert workload.num_workers == 2
    assert workload.block_worker.tolist() == [0, 1, 0, 1, 0, 1, 0, 1, 1, 0, 1, 0, 1, 0, 0, 1]
    assert workload.task_worker[:12].tolist() == [0, 1, 0, 1, 0, 1, 0, 1, 1, 0, 0, 1]
    assert groups(workload)[8:12] == reads((1, 5), (0, 4), (2, 6), (3, 7))
    assert set(workload.block_bytes.tolist()) == {1_000_000}
    assert len(log.notes) == 1
    assert "logBlockUpdates.enabled=true" in log.notes[0]
    assert log.notes[0].endswith(": 16")


def test_union_coalesce_cartesian_and_take_read_the_partitions_they_name() -> None:
    log = read_event_log(DATA / "union.eventlog.gz")

    expected = makes(0, 1, 2, 3) + makes(4, 5)
    expected += reads((0,), (1,), (2,), (3,), (4,), (5,))  # union of a and c
    expected += reads((0, 1), (2, 3))  # coalesce a
    expected += [((0, 1), (6,)), ((2, 3), (7,))]  # coalesce a, persisted as u
    expected += reads((6,), (7,))  # u again
    expected += reads((6, 4), (6, 5), (7, 4), (7, 5))  # cartesian of u and c, with a unpersisted
    expected += reads((4,))  # take reads one partition
    assert groups(log.workload) == expected
    assert [note.split(";")[0] for note in log.notes[:2]] == [
        "RDD 8 (CoalescedRDD) has 2 partitions and its parent 1 has 4",
        "RDD 11 (coalesced) has 2 partitions and its parent 10 has 4",
    ]
    is_dropped = log.workload.block_ends < log.workload.num_tasks
    assert is_dropped.tolist() == [True] * 4 + [False] * 4


def test_a_cached_dataframe_is_read_by_every_query_and_concurrent_jobs_wait_for_the_same() -> None:
    log = read_event_log(DATA / "dataframe.eventlog.gz")

    query, result = reads((0,), (1,), (2,), (3,)), [((), ())]
    assert groups(log.workload) == makes(0, 1, 2, 3) + (query + result) * 2 + query * 2 + result * 2
    assert log.workload.block_bytes.tolist() == [50520, 50544, 50544, 50544]
    assert log.workload.stage_after.tolist() == [-1, 0, 1, 2, 3, 4, 4, 6, 7]
    assert log.notes == ()


def test_an_rdd_persisted_again_has_new_blocks_and_evictions_are_noted() -> None:
    log = read_event_log(DATA / "evict.eventlog.gz")

    expected = makes(*range(16)) + reads(*((part, 8 + part) for part in range(8)))
    expected += makes(*range(16, 24)) + reads(*((block,) for block in range(16, 24)))
    assert groups(log.workload) == expected
    assert set(log.workload.block_bytes.tolist()) == {400_311}
    assert any(note.startswith("times a block left memory") and note.endswith(": 23") for note in log.notes)


# Made up: what a log says ---------------------------------------------------------------------------------------------


def rdd(number: int, *parents: int, name: str = "MapPartitionsRDD", partitions: int = 2, level: str = "") -> Event:
    return {
        "RDD ID": number,
        "Name": name,
        "Parent IDs": list(parents),
        "Storage Level": {"Use Disk": "disk" in level, "Use Memory": "memory" in level, "Replication": 1},
        "Number of Partitions": partitions,
        "Number of Cached Partitions": 0,
        "Memory Size": 0,
    }


def stage(number: int, *rdds: Event, parents: tuple[int, ...] = ()) -> Event:
    return {"Stage ID": number, "Parent IDs": list(parents), "RDD Info": list(rdds)}


def job(number: int, *stages: Event) -> Event:
    return {"Event": "SparkListenerJobStart", "Job ID": number, "Stage Infos": list(stages)}


def job_end(number: int) -> Event:
    return {"Event": "SparkListenerJobEnd", "Job ID": number}


def submit(info: Event) -> Event:
    return {"Event": "SparkListenerStageSubmitted", "Stage Info": info}


def complete(info: Event) -> Event:
    return {"Event": "SparkListenerStageCompleted", "Stage Info": info}


def task(number: int, stage: int, partition: int, reason: str = "Success", executor: str = "1") -> Event:
    return {
        "Event": "SparkListenerTaskEnd",
        "Stage ID": stage,
        "Task End Reason": {"Reason": reason},
        "Task Info": {"Task ID": number, "Index": partition, "Partition ID": partition, "Executor ID": executor},
        "Task Metrics": {"Executor Run Time": 1000 + number},
    }


def update(block: str, *, memory: int = 0, disk: int = 0, executor: str = "1") -> Event:
    level = {"Use Memory": memory > 0, "Use Disk": disk > 0, "Replication": 1}
    info = {"Block ID": block, "Block Manager ID": {"Executor ID": executor}, "Storage Level": level}
    return {
        "Event": "SparkListenerBlockUpdated",
        "Block Updated Info": info | {"Memory Size": memory, "Disk Size": disk},
    }


START: Event = {"Event": "SparkListenerLogStart", "Spark Version": "4.3.0"}
NAMED: Event = {"Event": "SparkListenerApplicationStart", "App Name": "made up"}


def text(*events: Event) -> str:
    return "".join(json.dumps(event) + "\n" for event in (START, NAMED, *events))


def read(folder: Path, *events: Event) -> EventLog:
    path = folder / "app-1"
    path.write_text(text(*events))
    return read_event_log(path)


def run(info: Event, *tasks: Event, number: int = 0) -> list[Event]:
    """A job of one stage, from start to end."""
    return [job(number, info), submit(info), *tasks, complete(info), job_end(number)]


SIMPLE = run(stage(0, rdd(0, level="memory")), task(0, 0, 0), task(1, 0, 1))


def test_the_first_success_of_a_partition_counts(tmp_path: Path) -> None:
    tasks = [
        task(0, 0, 0, reason="ExceptionFailure"),
        task(2, 0, 0),
        task(1, 0, 1),
        task(3, 0, 1),
        task(4, 0, 0, reason="TaskKilled"),
    ]
    log = read(tmp_path, *run(stage(0, rdd(0, level="memory")), *tasks))

    assert log.workload.task_compute_s.tolist() == [1.001, 1.002]
    assert "task attempts left out because they failed or repeated a partition: 3" in log.notes


@pytest.mark.parametrize(("name", "seconds"), [("MapPartitionsRDD", 0.25), ("PythonRDD", 1.001)])
def test_a_task_takes_its_cpu_time_unless_python_does_the_work(tmp_path: Path, name: str, seconds: float) -> None:
    info = stage(0, rdd(0, name=name, partitions=1, level="memory"))
    ended = task(1, 0, 0)
    ended["Task Metrics"]["Executor CPU Time"] = 250_000_000

    log = read(tmp_path, *run(info, ended))

    assert log.workload.task_compute_s.tolist() == [seconds]


def test_tasks_run_in_the_order_of_their_launch(tmp_path: Path) -> None:
    log = read(
        tmp_path, *run(stage(0, rdd(0, level="memory")), task(7, 0, 1, executor="b"), task(3, 0, 0, executor="a"))
    )

    assert log.workload.task_compute_s.tolist() == [1.003, 1.007]
    assert log.workload.task_worker.tolist() == log.workload.block_worker.tolist() == [0, 1]


def test_the_index_stands_in_for_a_partition_that_is_not_known(tmp_path: Path) -> None:
    unknown = task(0, 0, 1)
    unknown["Task Info"]["Partition ID"] = -1
    log = read(tmp_path, *run(stage(0, rdd(0, level="memory")), unknown), *run(stage(1, rdd(0)), number=1))

    assert log.workload.num_blocks == 1


def test_a_task_makes_all_persisted_partitions_above_it_and_later_ones_read_the_nearest(tmp_path: Path) -> None:
    source, made = rdd(0, level="memory"), rdd(1, 0, level="memory")
    log = read(
        tmp_path,
        *run(stage(0, source, made), task(0, 0, 0)),
        *run(stage(1, source, made, rdd(2, 1)), task(1, 1, 0), number=1),
        *run(stage(2, source, rdd(3, 0)), task(2, 2, 0), number=2),
    )

    assert groups(log.workload) == [((), (0, 1)), ((0,), ()), ((1,), ())]


def test_a_persisted_partition_that_only_a_part_of_the_job_made_is_made_when_it_is_needed(tmp_path: Path) -> None:
    source, made = rdd(0, level="memory"), rdd(1, 0, level="memory")
    log = read(
        tmp_path,
        *run(stage(0, source), task(0, 0, 1)),
        *run(stage(1, source, made), task(1, 1, 0), task(2, 1, 1), number=1),
    )

    assert groups(log.workload) == [((), (0,)), ((), (1, 2)), ((0,), (3,))]


def test_a_shuffle_ends_the_walk_also_when_its_source_is_in_the_stage(tmp_path: Path) -> None:
    source = rdd(0, level="memory")
    shuffled = rdd(1, 0, name="ShuffledRDD")
    log = read(
        tmp_path,
        *run(stage(0, source), task(0, 0, 0), task(1, 0, 1)),
        *run(stage(1, shuffled, rdd(2, 1)), task(2, 1, 0), number=1),
        *run(stage(2, source, shuffled, rdd(3, 1)), task(3, 2, 0), number=2),
        *run(stage(3, source, shuffled, rdd(4, 0, 1)), task(4, 3, 1), number=3),
    )

    assert groups(log.workload)[2:] == [((), ()), ((), ()), ((1,), ())]


def test_an_rdd_on_disk_only_is_no_block_but_ends_the_walk_once_it_is_made(tmp_path: Path) -> None:
    source, on_disk = rdd(0, level="memory"), rdd(1, 0, level="disk")
    log = read(
        tmp_path,
        *run(stage(0, source), task(0, 0, 0)),
        *run(stage(1, source, on_disk), task(1, 1, 0), number=1),
        *run(stage(2, source, on_disk, rdd(2, 1)), task(2, 2, 0), number=2),
    )

    assert groups(log.workload) == [((), (0,)), ((0,), ()), ((), ())]


def test_a_union_of_an_rdd_with_itself_reads_it_twice_over(tmp_path: Path) -> None:
    source, union = rdd(0, level="memory"), rdd(1, 0, 0, name="UnionRDD", partitions=4)
    tasks = [task(2 + part, 1, part) for part in range(4)]
    log = read(tmp_path, *SIMPLE, *run(stage(1, source, union), *tasks, number=1))

    assert groups(log.workload)[2:] == reads((0,), (1,), (0,), (1,))


def test_a_cartesian_whose_numbers_add_up_is_still_a_cartesian(tmp_path: Path) -> None:
    other = rdd(1, level="memory")
    cartesian = rdd(2, 0, 1, name="CartesianRDD", partitions=4)
    tasks = [task(4 + part, 2, part) for part in range(4)]
    log = read(
        tmp_path,
        *SIMPLE,
        *run(stage(1, other), task(2, 1, 0), task(3, 1, 1), number=1),
        *run(stage(2, rdd(0, level="memory"), other, cartesian), *tasks, number=2),
    )

    assert groups(log.workload)[4:] == reads((0, 2), (0, 3), (1, 2), (1, 3))


@pytest.mark.parametrize(
    ("partitions", "expected"),
    [
        (2, [(0, 1, 2), (3, 4, 5, 6)]),
        (3, [(0, 1), (2, 3), (4, 5, 6)]),
        (8, [(0,), (0,), (1,), (2,), (3,), (4,), (5,), (6,)]),
    ],
)
def test_other_numbers_of_partitions_are_cut_into_runs_of_neighbours(
    tmp_path: Path, partitions: int, expected: list[tuple[int, ...]]
) -> None:
    source = rdd(0, level="memory", partitions=7)
    log = read(
        tmp_path,
        *run(stage(0, source), *(task(part, 0, part) for part in range(7))),
        *run(
            stage(1, source, rdd(1, 0, partitions=partitions)),
            *(task(7 + part, 1, part) for part in range(partitions)),
            number=1,
        ),
    )

    assert groups(log.workload)[7:] == reads(*expected)
    assert len(log.notes) == 2  # the guess, and sizes that nobody recorded


def test_sizes_come_from_updates_in_memory_then_on_disk_then_from_the_average(tmp_path: Path) -> None:
    source = rdd(0, level="memory", partitions=4)
    log = read(
        tmp_path,
        *run(stage(0, source), *(task(part, 0, part) for part in range(4))),
        update("rdd_0_0", memory=100, executor="2"),
        update("rdd_0_0", disk=70),
        update("rdd_0_1", disk=30),
        update("broadcast_0", memory=999),
        update("rdd_0_3", memory=170),
    )

    assert log.workload.block_bytes.tolist() == [100, 30, 92, 170]
    assert log.workload.block_worker.tolist() == [1, 0, 0, 0]
    assert "blocks without a recorded size, taken as the average of their RDD: 1" in log.notes


def test_sizes_come_from_the_stage_when_no_update_was_logged(tmp_path: Path) -> None:
    info = stage(0, rdd(0, level="memory") | {"Number of Cached Partitions": 2, "Memory Size": 500})
    log = read(tmp_path, *run(info, task(0, 0, 0), task(1, 0, 1)))

    assert log.workload.block_bytes.tolist() == [250, 250]


def test_a_stage_waits_for_the_latest_of_its_parents_also_when_one_was_skipped(tmp_path: Path) -> None:
    left, right = stage(0, rdd(0, level="memory")), stage(1, rdd(1, level="memory"))
    both = stage(2, rdd(2, 0, 1, name="ShuffledRDD"), parents=(0, 1))
    skipped = stage(3, rdd(1, level="memory"))
    again = stage(4, rdd(3, 1, name="ShuffledRDD"), parents=(3,))
    log = read(
        tmp_path,
        job(0, left, right, both),
        job(1, skipped, again),
        submit(left),
        submit(right),
        *(task(0, 0, 0), task(1, 1, 0)),
        complete(right),
        complete(left),
        submit(both),
        task(2, 2, 0),
        submit(again),
        task(3, 4, 0),
    )

    assert log.workload.stage_after.tolist() == [-1, -1, 0, 1]
    assert log.workload.task_job.tolist() == [0, 0, 0, 1]


def test_a_job_submitted_while_another_runs_does_not_wait_for_it(tmp_path: Path) -> None:
    first, second, third = (stage(number, rdd(number, level="memory")) for number in range(3))
    log = read(
        tmp_path,
        job(0, first),
        submit(first),
        job(1, second),
        submit(second),
        *(task(0, 0, 0), task(1, 1, 0)),
        *(complete(first), job_end(0), complete(second), job_end(1)),
        *run(third, task(2, 2, 0), number=2),
    )

    assert log.workload.stage_after.tolist() == [-1, -1, 1]


def test_tasks_whose_stage_never_started_in_the_log_are_left_out(tmp_path: Path) -> None:
    log = read(tmp_path, task(9, 5, 0), *SIMPLE)

    assert log.workload.num_tasks == 2
    assert "tasks left out because the log does not hold the start of their stage: 1" in log.notes


def test_the_name_of_the_file_stands_in_for_an_application_without_a_name(tmp_path: Path) -> None:
    path = tmp_path / "app-1"
    path.write_text("".join(json.dumps(event) + "\n" for event in (START, *SIMPLE)))

    assert read_event_log(path).workload.name == "app-1"


# Made up: files -------------------------------------------------------------------------------------------------------


def rolling(folder: Path, parts: dict[str, str]) -> Path:
    log = folder / "eventlog_v2_app-1"
    log.mkdir()
    (log / "appstatus_app-1").touch()
    for name, content in parts.items():
        (log / name).write_text(content)
    return log


def halves() -> tuple[str, str]:
    lines = (DATA / "zip.eventlog").read_text().splitlines(keepends=True)
    return "".join(lines[:50]), "".join(lines[50:])


def test_a_rolling_log_is_read_in_the_order_of_its_numbers(tmp_path: Path) -> None:
    first, second = halves()
    parts = {"events_10_app-1": "", "events_2_app-1": second, "events_1_app-1": first}
    log = rolling(tmp_path, parts | {f"events_{number}_app-1": "" for number in range(3, 10)})

    whole = read_event_log(DATA / "zip.eventlog")
    assert groups(read_event_log(log).workload) == groups(whole.workload)


def test_a_folder_with_one_log_stands_for_it(tmp_path: Path) -> None:
    first, second = halves()
    rolling(tmp_path, {"events_1_app-1": first, "events_2_app-1": second})
    (tmp_path / ".crc").touch()

    assert read_event_log(tmp_path).application == "zip"


def test_a_gap_in_a_rolling_log_is_named(tmp_path: Path) -> None:
    first, second = halves()
    log = rolling(tmp_path, {"events_1_app-1": first, "events_3_app-1": second})

    with pytest.raises(BadTrace, match=r"eventlog_v2_app-1: the rolling log lacks its file number 2"):
        read_event_log(log)


def test_a_compacted_file_stands_for_all_before_it_and_is_noted(tmp_path: Path) -> None:
    first, second = halves()
    parts = {
        "events_1_app-1": "junk",
        "events_2_app-1.compact": first,
        "events_2_app-1": "junk",
        "events_3_app-1": second,
    }
    log = read_event_log(rolling(tmp_path, parts))

    assert log.workload.num_tasks == 24
    assert log.notes == ("the history server has compacted this log: jobs that had ended before are not in it",)


def test_gzip_is_known_by_its_content(tmp_path: Path) -> None:
    path = tmp_path / "app-1"
    path.write_bytes(gzip.compress(text(*SIMPLE).encode()))

    assert read_event_log(str(path)).workload.num_tasks == 2


@pytest.mark.parametrize("name", ["app.lz4", "app.lzf", "app.snappy", "app.snappy.inprogress"])
def test_codecs_of_spark_are_refused_with_the_way_out(tmp_path: Path, name: str) -> None:
    (tmp_path / name).touch()

    with pytest.raises(BadTrace, match=r"codec, which is not read here; set spark.eventLog.compress=false, or spark"):
        read_event_log(tmp_path / name)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("", r"app-1: has no SparkListenerLogStart, so it is no Spark event log"),
        ('{"Event":"SparkListenerJobEnd","Job ID":0}\n', r"app-1: has no SparkListenerLogStart"),
        ("time,block\n1,2\n", r"app-1, line 1: found 'time,block', but every line of a Spark event log is one JSON"),
        ("{broken\n", r"app-1, line 1: found '{broken'"),
        ("[1, 2]\n", r"app-1, line 1: found '\[1, 2\]'"),
        ('{"a": 1}\n', r"app-1, line 1: found"),
        (text() + "\n" + text(), r"app-1, line 3: found ''"),
        (text(*SIMPLE)[:-30] + "\n" + text(), r"app-1, line 8: found"),
        (text(), r"app-1: application 'made up' kept no RDD in memory .* persist\(\) or cache\(\)"),
        (text(*run(stage(0, rdd(0)), task(0, 0, 0))), r"kept no RDD in memory"),
        (text(*run(stage(0, rdd(0, level="disk")), task(0, 0, 0))), r"kept no RDD in memory"),
        (text(*run(stage(0, rdd(0, level="memory")))), r"kept no RDD in memory"),
        (
            text(*run(stage(0, rdd(0, level="memory")), task(0, 0, 2))),
            r"task 0 ran partition 2 of stage 0, which has 2",
        ),
        (
            text({"Event": "SparkListenerJobStart"}),
            r"app-1, line 3: SparkListenerJobStart has no usable field 'Job ID'",
        ),
    ],
)
def test_a_file_that_cannot_be_used_is_refused(tmp_path: Path, content: str, problem: str) -> None:
    path = tmp_path / "app-1"
    path.write_text(content)

    with pytest.raises(BadTrace, match=problem):
        read_event_log(path, allow_truncated=True)


def test_a_file_that_is_not_text_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "app-1"
    path.write_bytes(b"\xff\xfe\x00PAR1" * 10)

    with pytest.raises(BadTrace, match=r"app-1, line 1: found"):
        read_event_log(path)


def test_a_path_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadTrace, match=r"none: does not exist"):
        read_event_log(tmp_path / "none")


def test_a_folder_that_may_not_be_listed_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: Path) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(Path, "iterdir", refuse)

    with pytest.raises(BadTrace, match=r"cannot be read: Permission denied; check the file and its rights"):
        read_event_log(tmp_path)


def test_a_folder_that_holds_more_or_less_than_one_log_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadTrace, match=r"holds 0 entries \(\) instead of one event log"):
        read_event_log(tmp_path)

    for name in "dcba":
        (tmp_path / name).touch()

    with pytest.raises(
        BadTrace, match=r"holds 4 entries \(a, b, c, \.\.\.\) instead of one event log; name one of them"
    ):
        read_event_log(tmp_path)


def test_a_line_cut_in_the_middle_is_refused_unless_it_is_expected(tmp_path: Path) -> None:
    path = tmp_path / "app-1"
    path.write_text(text(*SIMPLE)[:-10])

    with pytest.raises(
        BadTrace, match=r"app-1, line 8: is cut in the middle.*remove that line or pass --allow-truncated"
    ):
        read_event_log(path)
    log = read_event_log(path, allow_truncated=True)

    assert log.workload.num_tasks == 2
    assert log.notes[0] == "app-1: line 8 is cut in the middle and left out"


def test_gzip_that_ends_early_is_refused_unless_it_is_expected(tmp_path: Path) -> None:
    path = tmp_path / "app-1.gz"
    path.write_bytes((DATA / "pagerank.eventlog.gz").read_bytes()[:2000])

    with pytest.raises(BadTrace, match=r"app-1\.gz: the gzip data ends early"):
        read_event_log(path)
    log = read_event_log(path, allow_truncated=True)

    assert 0 < log.workload.num_tasks < 40
    assert "app-1.gz: the gzip data ends early; read up to there" in log.notes


def write_zstd(path: Path, content: bytes) -> None:
    """As Spark does: one frame behind the other."""
    half = len(content) // 2
    frames = []
    for part in (content[:half], content[half:]):
        sink = pa.BufferOutputStream()
        with pa.CompressedOutputStream(sink, "zstd") as stream:
            stream.write(part)
        frames.append(sink.getvalue().to_pybytes())
    path.write_bytes(b"".join(frames))


@pytest.mark.parametrize("name", ["app-1.zstd", "app-1.zstd.inprogress"])
def test_the_default_codec_of_spark_is_read(tmp_path: Path, name: str) -> None:
    plain = DATA / "zip.eventlog"
    write_zstd(tmp_path / name, plain.read_bytes())

    assert groups(read_event_log(tmp_path / name).workload) == groups(read_event_log(plain).workload)


def test_zstd_that_ends_early_is_refused_unless_it_is_expected(tmp_path: Path) -> None:
    path = tmp_path / "app-1.zstd"
    write_zstd(path, (DATA / "zip.eventlog").read_bytes())
    path.write_bytes(path.read_bytes()[:-30])

    with pytest.raises(BadTrace, match=r"app-1\.zstd: the zstd data ends early"):
        read_event_log(path)
    log = read_event_log(path, allow_truncated=True)

    assert "app-1.zstd: the zstd data ends early; read up to there" in log.notes


def test_damaged_gzip_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "app-1.gz"
    path.write_bytes(b"\x1f\x8bnot gzip at all")

    with pytest.raises(BadTrace, match=r"app-1\.gz: cannot be read: "):
        read_event_log(path)


# Whatever happens to a log --------------------------------------------------------------------------------------------


def read_or_refuse(content: bytes) -> EventLog | None:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "app-1"
        path.write_bytes(content)
        try:
            return read_event_log(path, allow_truncated=True)
        except TakeupError:
            return None


WHOLE = (DATA / "zip.eventlog").read_bytes()


@settings(max_examples=40, deadline=None)
@given(st.integers(0, len(WHOLE)))
def test_a_log_cut_anywhere_gives_the_groups_up_to_there_or_one_sentence(length: int) -> None:
    log = read_or_refuse(WHOLE[:length])

    whole = read_event_log(DATA / "zip.eventlog").workload
    assert log is None or set(groups(log.workload)) <= set(groups(whole))


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The path to everything inside a JSON value."""
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [found for key, child in inside for found in ((*path, key), *places(child, (*path, key)))]


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_a_log_with_a_wrong_field_is_read_or_refused_with_one_sentence(data: st.DataObject) -> None:
    events = [START, NAMED, *SIMPLE, update("rdd_0_0", memory=5), {"Event": "SparkListenerUnpersistRDD", "RDD ID": 0}]
    events = json.loads(json.dumps(events))
    *path, last = data.draw(st.sampled_from(places(events)))
    target: Any = events
    for key in path:
        target = target[key]
    target[last] = data.draw(st.sampled_from([None, "x", -1, 0.5, 2**70, [], {}, ["x"], [{}]]))

    log = read_or_refuse("".join(json.dumps(event) + "\n" for event in events).encode())

    assert log is None or log.workload.num_blocks > 0
