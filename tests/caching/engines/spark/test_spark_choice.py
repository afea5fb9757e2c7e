"""Who leaves Spark's memory when some blocks are on disk already and others would have to be written."""

from __future__ import annotations

import json
import shutil
import subprocess
from typing import Any

import pytest

pytestmark = [
    pytest.mark.engine,
    pytest.mark.skipif(shutil.which("javac") is None, reason="needs java and javac of a JDK 17"),
    pytest.mark.xdist_group("spark-java"),  # so that one worker compiles the programs
]
MEMORY_ONLY, TO_BE_WRITTEN, ON_DISK = (False, False), (True, False), (True, True)
OPENED = ("java.lang", "java.lang.invoke", "java.nio", "java.util", "java.util.concurrent", "java.net", "sun.nio.ch")
Event = tuple[Any, ...]


def answers(class_path: str, *events: Event) -> list[str]:
    command = ["java", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-cp", class_path, "io.takeup.spark.ChoiceMain"]
    text = "".join(json.dumps(event) + "\n" for event in events)
    return subprocess.run(command, input=text, capture_output=True, text=True, check=True).stdout.splitlines()


def in_memory(block: int, state: tuple[bool, bool], cost_s: float = 1e-5) -> list[Event]:
    return [("arrives", block, *state), ("stored", block, cost_s)]


def read_at(block: int, position: float) -> Event:
    return ("reader", block, block, position)


def test_what_is_on_disk_leaves_before_what_nobody_reads_but_must_be_written(class_path: str) -> None:
    told = answers(
        class_path,
        *in_memory(1, TO_BE_WRITTEN),
        *in_memory(2, ON_DISK),
        read_at(2, 5000),
        ("arrives", 3, *TO_BE_WRITTEN),
        ("choose", 3),
    )

    assert told == ["[rdd_2_0]"]


def test_a_new_block_stays_out_if_others_would_have_to_be_written_for_it(class_path: str) -> None:
    told = answers(
        class_path,
        *in_memory(1, TO_BE_WRITTEN),
        read_at(1, 500),
        ("arrives", 2, *ON_DISK),
        ("choose", 2),
    )

    assert told == ["stays out"]


def test_blocks_that_no_disk_keeps_leave_by_what_readers_save(class_path: str) -> None:
    told = answers(
        class_path,
        *in_memory(1, MEMORY_ONLY),
        read_at(1, 500),
        *in_memory(2, MEMORY_ONLY),
        read_at(2, 5000),
        ("arrives", 3, *MEMORY_ONLY),
        read_at(3, 600),
        ("choose", 3),
    )

    assert told == ["[rdd_2_0]"]


def test_a_write_does_not_outweigh_a_long_computation(class_path: str) -> None:
    told = answers(
        class_path,
        *in_memory(1, TO_BE_WRITTEN),
        *in_memory(2, MEMORY_ONLY, cost_s=10.0),
        read_at(2, 500),
        ("arrives", 3, *MEMORY_ONLY),
        ("choose", 3),
    )

    assert told == ["[rdd_1_0]"]


def test_the_block_that_is_read_next_and_fits_comes_back_first_and_once(class_path: str) -> None:
    told = answers(
        class_path,
        *in_memory(1, TO_BE_WRITTEN),
        *in_memory(2, TO_BE_WRITTEN),
        *in_memory(3, TO_BE_WRITTEN),
        ("leftOnDisk", 1),
        ("leftOnDisk", 2),
        ("leftOnDisk", 3),
        read_at(1, 900),
        read_at(2, 400),
        ("prefetch", 0, 999),
        ("prefetch", 0, 1000),
        ("prefetch", 0, 1000),
        ("prefetch", 0, 1000),
    )

    assert told == ["null", "rdd_2_0", "rdd_1_0", "null"]


def test_a_block_is_brought_back_for_a_running_job_only(class_path: str) -> None:
    on_disk = [("leftOnDisk", block) for block in (1, 2)]
    told = answers(
        class_path,
        *on_disk,
        ("foretold", 1, 1, 10),
        read_at(2, 5000),
        ("prefetch", 0, 10_000),
        ("prefetch", 0, 10_000),
        read_at(1, 6000),
        ("prefetch", 0, 10_000),
    )

    assert told == ["rdd_2_0", "null", "rdd_1_0"]


def test_messages_sent_as_one_say_what_they_say_one_by_one(class_path: str) -> None:
    def told(*readers: Event) -> list[str]:
        return answers(
            class_path,
            *in_memory(1, MEMORY_ONLY),
            *in_memory(2, MEMORY_ONLY),
            *readers,
            ("arrives", 3, *MEMORY_ONLY),
            ("choose", 3),
        )

    together = told(("readers", 0, [[1, 1, 100], [2, 2, 5000], [3, 3, 200]]))

    assert together == told(read_at(1, 100), read_at(2, 5000), read_at(3, 200)) == ["[rdd_2_0]"]


def test_the_task_that_makes_a_block_is_no_reason_to_keep_it(class_path: str) -> None:
    told = answers(
        class_path,
        *in_memory(1, MEMORY_ONLY),
        read_at(1, 5000),
        read_at(2, 10),
        ("arrives", 2, *MEMORY_ONLY, 2),
        ("choose", 2),
    )

    assert told == ["stays out"]


def test_a_scan_does_not_evict_itself_when_nobody_is_known_to_read_it_again(class_path: str) -> None:
    told = answers(
        class_path,
        *in_memory(501, MEMORY_ONLY),
        ("arrives", 502, *MEMORY_ONLY),
        ("choose", 502),
        ("arrives", 601, *MEMORY_ONLY),
        ("choose", 601),
    )

    assert told == ["stays out", "[rdd_5_1]"]


def test_what_a_disk_keeps_is_worth_its_reading_and_not_its_computation(class_path: str) -> None:
    told = answers(
        class_path,
        *in_memory(1, TO_BE_WRITTEN, cost_s=10.0),
        ("leftOnDisk", 1),
        read_at(1, 500),
        *in_memory(2, MEMORY_ONLY, cost_s=1e-3),
        read_at(2, 500),
        ("arrives", 3, *MEMORY_ONLY),
        read_at(3, 400),
        ("choose", 3),
    )

    assert told == ["[rdd_1_0]"]


def test_what_is_saved_is_counted_against_sparks_own_rule(class_path: str) -> None:
    """Spark has room for two of three blocks and drops the first; the policy still has it, and lacks the third."""
    told = answers(
        class_path,
        ("room", 0, 2**20 + 1000),
        *[event for block in (1, 2, 3) for event in in_memory(block, MEMORY_ONLY, cost_s=2.0)],
        ("saved", 0),
        ("read", 1),
        ("saved", 0),
        ("read", 3),
        ("saved", 0),
    )

    assert told == ["0 0.0", "0 2.0", "1 2.0"]


def test_a_block_that_is_made_again_and_that_spark_would_have_is_a_loss(class_path: str) -> None:
    told = answers(
        class_path,
        ("room", 0, 2**21),
        *in_memory(1, MEMORY_ONLY, cost_s=2.0),
        ("removed", 1),
        ("arrives", 1, *MEMORY_ONLY),
        ("saved", 0),
    )

    assert told == ["1 -2.0"]


def test_spark_decides_while_the_policy_has_lost_and_the_policy_again_afterwards(class_path: str) -> None:
    opened = [f"--add-opens=java.base/{name}=ALL-UNNAMED" for name in OPENED]
    command = ["java", "-Xmx600m", "-XX:+UseSerialGC", *opened, "-cp", class_path, "io.takeup.spark.GivesWayMain"]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr[-2000:]
    ours, given, again = (list(map(int, line.split())) for line in ran.stdout.splitlines())

    assert 0 < ours[0] == given[0] < again[0]  # choices of the policy
    assert ours[1] < given[1]  # evictions
    assert (ours[2], given[2]) == (0, 1)  # how often Spark took over
    assert again[3] == 0  # failures
