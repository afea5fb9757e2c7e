"""The plug-in's group table beside the Python one: random events to both, equal counts from both."""

from __future__ import annotations

import json
import math
import shutil
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from takeup.caching.groups import GroupTable
from takeup.caching.policies.dag import DagValue

pytestmark = [
    pytest.mark.engine,
    pytest.mark.skipif(shutil.which("javac") is None, reason="needs java and javac of a JDK 17"),
    pytest.mark.xdist_group("spark-java"),  # so that one worker compiles the programs
]
NUM_BLOCKS = 5
CAPACITY_BYTES = 1000
BLOCK = st.integers(0, NUM_BLOCKS - 1)
CONSUMER = st.integers(100, 105)
EVENT = st.one_of(
    st.tuples(
        st.just("open"), CONSUMER, st.lists(BLOCK, max_size=4), st.integers(0, 500).map(float), st.integers(0, 9)
    ),
    st.tuples(st.just("close"), CONSUMER),
    st.tuples(st.just("cached"), BLOCK),
    st.tuples(st.just("lost"), BLOCK),
    st.tuples(st.just("forget"), BLOCK),
    st.tuples(st.just("describe"), BLOCK, st.integers(1, 9), st.sampled_from([0.25, 1.0, 3.0])),
)


@pytest.fixture(scope="module")
def java(class_path: str) -> Iterator[subprocess.Popen[str]]:
    """One process for all examples."""
    command = ["java", "-XX:+UseSerialGC", "-cp", class_path, "io.takeup.spark.GroupTableMain"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield process
        process.stdin.close()  # type: ignore[union-attr]


def ask(java: subprocess.Popen[str], event: tuple[Any, ...]) -> list[Any]:
    assert java.stdin is not None
    assert java.stdout is not None
    java.stdin.write(json.dumps([*event, NUM_BLOCKS]) + "\n")
    java.stdin.flush()
    answer: list[Any] = json.loads(java.stdout.readline())
    return answer


def expected(table: GroupTable, event: tuple[Any, ...]) -> list[Any]:
    answer = getattr(table, event[0])(*event[1:])
    dag = DagValue(table, CAPACITY_BYTES)
    rows = [
        [
            table.rc(block),
            table.erc(block),
            int(table.is_lost(block)),
            finite(table.next_use(block)),
            finite(table.next_stage(block)),
            finite(dag.rank(block)[0]),
        ]
        for block in range(NUM_BLOCKS)
    ]
    return [answer or 0, *rows]


def finite(value: float) -> float:
    return math.copysign(1e300, value) if math.isinf(value) else value


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(events=st.lists(EVENT, max_size=30))
def test_both_tables_count_alike_after_every_event(java: subprocess.Popen[str], events: list[tuple[Any, ...]]) -> None:
    table = GroupTable()
    ask(java, ("reset", 0))

    for event in events:
        theirs, ours = ask(java, event), expected(table, event)

        assert theirs[0] == ours[0], event
        for block in range(NUM_BLOCKS):
            assert theirs[1 + block][:5] == ours[1 + block][:5], (event, block)
            assert theirs[1 + block][5] == pytest.approx(ours[1 + block][5], abs=1), (event, block)
