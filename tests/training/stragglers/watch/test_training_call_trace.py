"""Calls as a trace: what viewers need, clocks set by common ends, and the suspect in the name of its rank."""

from __future__ import annotations

import json

import numpy as np
import pytest

from takeup.training.stragglers.contract import CallLog, SlowdownEvent, Suspect
from takeup.training.stragglers.watch.reports import chrome_trace
from training.stragglers.plain_job import Faults, data_parallel, logs_of, two_by_two

EVENT = SlowdownEvent(10, 14, True, 1.5, 0.33, (Suspect("compute", (2,), 1.5, 0.9, "why"),), 0.1, 0.15)


def spans(logs: list[CallLog], name: str = "") -> list[dict[str, float]]:
    return [each for each in chrome_trace(logs)["traceEvents"] if each["ph"] == "X" and name in each["name"]]


def test_every_call_is_a_span_of_its_rank() -> None:
    logs = logs_of(data_parallel(3), 5, Faults(), 0)
    found = spans(logs)

    assert len(found) == sum(len(log.calls) for log in logs)
    assert {each["pid"] for each in found} == {0, 1, 2}
    assert min(each["ts"] for each in found) >= 0
    assert max(each["ts"] for each in found) < 2e6  # microseconds; clocks are hours apart


def test_what_ranks_do_together_ends_together() -> None:
    logs = logs_of(two_by_two(), 6, Faults(ranks={1: 1.5}), 0)
    ends = [each["ts"] + each["dur"] for each in spans(logs, "all reduce") if each["args"]["bytes"] == 4]  # type: ignore[index]
    by_iteration = np.sort(ends).reshape(6, 4)

    assert np.ptp(by_iteration, axis=1).max() < 2000


def test_messages_name_the_other_rank() -> None:
    logs = logs_of(two_by_two(), 3, Faults(), 0)

    assert len(spans(logs, "send to 1")) == 12
    assert len(spans(logs, "receive from 0")) == 12


def test_the_suspect_is_in_the_name_of_its_rank_and_the_sentence_beside() -> None:
    trace = chrome_trace(logs_of(data_parallel(3), 5, Faults(), 0), EVENT)
    names = [each["args"]["name"] for each in trace["traceEvents"] if each["name"] == "process_name"]

    assert names == ["rank 0", "rank 1", "rank 2 (rank 2 computes 1.50x slower)"]
    assert trace["otherData"]["sentence"] == EVENT.sentence()


def test_it_is_plain_json() -> None:
    trace = chrome_trace(logs_of(two_by_two(), 3, Faults(), 0), EVENT)

    assert json.loads(json.dumps(trace)) == trace


@pytest.mark.parametrize("num_rows", [0, 1])
def test_little_or_nothing_is_no_problem(num_rows: int) -> None:
    logs = [CallLog(log.rank, log.calls[:num_rows], log.groups) for log in logs_of(data_parallel(2), 3, Faults(), 0)]

    assert len(spans(logs)) == 2 * num_rows
    assert chrome_trace([])["traceEvents"] == []
