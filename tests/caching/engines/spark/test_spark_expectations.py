"""What the plug-in expects of RDDs after the jobs it has seen, asked in a Java process of its own."""

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
ANYWHERE = [0, 1]
NEXT_JOB, SECOND_JOB = [0.0, 50.0], [100.0, 150.0]  # distances to the two blocks; every job has 100 bytes


def expected(class_path: str, *lines: dict[str, Any]) -> list[dict[str, Any]]:
    """After each job, the RDDs that are expected and how far they are."""
    answer = subprocess.run(
        ["java", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-cp", class_path, "io.takeup.spark.ExpectationsMain"],
        input="\n".join(map(json.dumps, lines)),
        capture_output=True,
        text=True,
        check=True,
    )
    return [json.loads(line) for line in answer.stdout.splitlines()]


def job(*rdds: list[Any]) -> dict[str, Any]:
    return {"job": rdds}


def test_an_rdd_that_was_never_read_is_expected_at_once_but_not_for_ever(class_path: str) -> None:
    after = expected(class_path, job([1, "a"]), *[job()] * 5)

    assert after == [{"1": NEXT_JOB}] * 4 + [{}] * 2


def test_an_rdd_that_was_read_once_is_expected_after_as_many_jobs_as_it_took(class_path: str) -> None:
    after = expected(class_path, job([1, "a"]), job(), job([1, "a", ANYWHERE]), *[job()] * 5)

    assert [each.get("1") for each in after[2:]] == [SECOND_JOB, *[NEXT_JOB] * 4, None]


def test_an_rdd_that_several_jobs_read_is_expected_after_as_many_jobs_as_last_time(class_path: str) -> None:
    read = job([1, "a", ANYWHERE])
    after = expected(class_path, job([1, "a"]), read, job(), read, *[job()] * 5)

    assert [each.get("1") for each in after[3:]] == [SECOND_JOB, *[NEXT_JOB] * 4, None]


def test_in_a_loop_the_next_rdd_of_a_kind_is_expected_where_the_one_before_was_read(class_path: str) -> None:
    after = expected(
        class_path, job([1, "rank"]), job([1, "rank", [0.5, 0.9]], [2, "rank"]), job([2, "rank", [0.5, 0.9]])
    )

    assert after[1] == {"2": pytest.approx([50, 70])}
    assert after[2] == {}


def test_in_a_loop_what_was_never_read_in_the_rounds_before_is_not_expected(class_path: str) -> None:
    rounds = [job([number, "unused"]) for number in range(1, 7)]
    after = expected(class_path, *rounds)

    assert after[0] == {"1": NEXT_JOB}
    assert "6" not in after[5]


def test_what_was_dropped_unread_is_not_expected_of_the_next_of_its_kind(class_path: str) -> None:
    after = expected(class_path, job([1, "unused"]), {"forget": 1}, job([2, "unused"]))

    assert after == [{"1": NEXT_JOB}, {}]


def test_an_rdd_that_is_read_two_rounds_later_is_expected_there(class_path: str) -> None:
    rounds = [job([number, "a"], *([[number - 2, "a", ANYWHERE]] if number > 2 else [])) for number in range(1, 6)]
    after = expected(class_path, *rounds)

    assert after[4]["5"] == SECOND_JOB
    assert after[4]["4"] == NEXT_JOB
    assert "3" not in after[4]


def test_two_of_a_kind_in_one_job_have_precedents_of_their_own(class_path: str) -> None:
    after = expected(
        class_path,
        job([1, "a"], [2, "a"]),
        job([1, "a", ANYWHERE]),
        {"forget": 1},
        {"forget": 2},
        job([3, "a"], [4, "a"]),
    )

    assert after[2] == {"3": NEXT_JOB}


def test_an_rdd_that_goes_its_own_way_is_expected_as_if_it_were_the_first(class_path: str) -> None:
    read = job([2, "a", ANYWHERE])
    after = expected(class_path, job([1, "a"]), {"forget": 1}, job([2, "a"]), read, read)

    assert after[1] == {}
    assert after[3] == {"2": NEXT_JOB}


def test_an_expectation_that_has_not_moved_is_not_repeated(class_path: str) -> None:
    after = expected(class_path, job([1, "a"]), {"said": True}, job(), {"said": True}, job([2, "b"]), {"said": True})

    assert after[1::2] == [{"said": 1}, {"said": 0}, {"said": 1}]
    assert after[2] == {"1": NEXT_JOB}


def test_an_expectation_that_was_not_sent_is_new_the_next_time(class_path: str) -> None:
    after = expected(class_path, {**job([1, "a"]), "trusted": True}, job(), {"said": True})

    assert after[-1] == {"said": 1}
