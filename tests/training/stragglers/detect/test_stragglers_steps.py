"""Iterations by steps of the optimizer, where layers make more equal calls than iterations; and long jobs."""

from __future__ import annotations

import numpy as np
import pytest

from takeup.training.stragglers.contract import CALL, STEP_GROUP, CallLog, Operation, SlowdownEvent
from takeup.training.stragglers.detect.detector import NUM_KEPT, StragglerDetector
from training.stragglers.plain_job import Faults, Job, data_parallel, logs_of

WORLD = (0, 1, 2, 3)


def layers(num_layers: int) -> Job:
    """Equal layers, gathered one after the other and scattered back, as FSDP does; rank by rank alike."""

    def steps(rank: int, iteration: int) -> list[tuple[str, float, int, int]]:
        gather = [("call", 1e4, 0, Operation.ALL_GATHER), ("wait", 0, 0, 0), ("compute", 0.004, 0, 0)]
        scatter = [("call", 1e4, 0, Operation.REDUCE_SCATTER), ("wait", 0, 0, 0), ("compute", 0.004, 0, 0)]
        return [*gather * num_layers, *scatter * num_layers]

    return Job({0: WORLD}, steps)


def with_steps(log: CallLog, every: int) -> CallLog:
    """The log with a step of the optimizer just before every n-th call."""
    calls = log.calls[every::every]
    steps = np.zeros(len(calls), CALL)
    steps["operation"], steps["peer"], steps["group"] = Operation.STEP, -1, STEP_GROUP
    steps["number"], steps["began_ns"] = np.arange(len(calls)), calls["began_ns"] - 1000
    steps["ended_ns"] = steps["began_ns"]
    rows = np.concatenate([log.calls, steps])
    return CallLog(log.rank, rows[np.argsort(rows["began_ns"], kind="stable")], {**log.groups, STEP_GROUP: ()})


def watched(logs: list[CallLog], num_parts: int = 40) -> tuple[StragglerDetector, list[SlowdownEvent]]:
    """A detector that got these logs in portions, and what it said."""
    detector, events = StragglerDetector(), list[SlowdownEvent]()
    for part in range(num_parts):
        portions = [slice(len(log.calls) * part // num_parts, len(log.calls) * (part + 1) // num_parts) for log in logs]
        pairs = zip(logs, portions, strict=True)
        events += detector.see([CallLog(log.rank, log.calls[each], log.groups) for log, each in pairs])
    return detector, events


@pytest.mark.parametrize("num_layers", [4, 12, 32])
def test_equal_layers_are_no_iterations_where_the_optimizer_is_seen(num_layers: int) -> None:
    logs = [with_steps(log, 2 * num_layers) for log in logs_of(layers(num_layers), 120, Faults(), 1)]

    detector, events = watched(logs)

    assert 120 - 12 <= detector.num_iterations <= 120
    assert np.median(detector.iterations_s) == pytest.approx(2 * num_layers * 0.0041, rel=0.15)
    assert events == []


def test_a_slow_rank_of_a_sharded_job_is_named_with_its_iteration_and_cost() -> None:
    faults = Faults(since=60, ranks={2: 1.5})
    logs = [with_steps(log, 24) for log in logs_of(layers(12), 140, faults, 1)]

    _, (event,) = watched(logs)

    assert event.suspects[0].ranks == (2,)
    assert event.began == pytest.approx(60, abs=12)  # steps count from when they are known
    assert event.lost_share == pytest.approx(1 / 3, abs=0.04)


def test_the_call_for_a_pause_is_a_call_although_steps_mark_iterations() -> None:
    detector, _ = watched([with_steps(log, 24) for log in logs_of(layers(12), 60, Faults(), 1)])

    assert set(detector.anchors) == set(WORLD)
    assert {operation for operation, _, _ in detector.anchors.values()} <= {
        Operation.ALL_GATHER,
        Operation.REDUCE_SCATTER,
    }


def test_ranks_that_start_to_step_late_are_counted_by_calls_until_then() -> None:
    logs = logs_of(data_parallel(4), 200, Faults(), 1)
    halves = [[CallLog(log.rank, half, log.groups) for log in logs for half in [log.calls[: len(log.calls) // 2]]]]
    halves.append([with_steps(CallLog(log.rank, log.calls[len(log.calls) // 2 :], log.groups), 4) for log in logs])
    detector = StragglerDetector()

    detector.see(halves[0])
    assert detector.num_iterations > 80
    detector.see(halves[1])
    detector.see([with_steps(log, 4) for log in logs_of(data_parallel(4), 60, Faults(), 2)])
    assert detector.num_iterations < 80  # a new count, by steps


# Long jobs ------------------------------------------------------------------------------------------------------------


def test_the_iteration_of_a_late_change_is_right_although_early_ones_are_forgotten() -> None:
    _, (event,) = watched(logs_of(data_parallel(2), 620, Faults(since=560, ranks={1: 1.5}), 1), num_parts=124)

    assert event.began == pytest.approx(560, abs=5)
    assert 0 <= event.declared - event.began <= 12


def test_a_change_is_told_once_there_are_enough_calls_since_to_find_its_cause() -> None:
    logs, told = logs_of(data_parallel(4), 120, Faults(since=80, ranks={1: 3.0}), 1), list[int]()
    detector = StragglerDetector(num_to_locate=9)
    for part in range(480):
        pieces = [slice(len(log.calls) * part // 480, len(log.calls) * (part + 1) // 480) for log in logs]
        events = detector.see(
            [CallLog(log.rank, log.calls[one], log.groups) for log, one in zip(logs, pieces, strict=True)]
        )
        told += [detector.num_iterations - event.began for event in events if not event.is_standing]

    assert told[0] in (9, 10)


def test_as_many_iterations_are_kept_as_comparisons_need() -> None:
    detector, _ = watched(logs_of(data_parallel(2), 300, Faults(), 1))

    (kept,) = {len(log.calls) // 4 for log in detector.logs()}
    assert NUM_KEPT <= kept <= NUM_KEPT + 12
