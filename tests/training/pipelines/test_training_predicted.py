"""Predictions: a healthy run explains itself, and what faults add is added to what was measured."""

from __future__ import annotations

from dataclasses import replace

import pytest

from support.pipeline_lab.measured import calibrate_profile, with_faults
from takeup.training.pipelines.planners import find_policy
from takeup.training.pipelines.profile import Link, Profile, Stage
from takeup.training.pipelines.timing.evaluation import timeline_of
from training.pipeline_profiles import slow

HEALTHY = slow(4, 12, {})
MEASURED = replace(HEALTHY, stages=(Stage(0.0102, 0.0103, 0.0101),) * 4, links=(Link(0.0004),) * 3)


@pytest.mark.parametrize("name", ["one_f_one_b", "zb_h1", "adaptra"])
def test_the_calibrated_pipeline_takes_as_long_as_the_run_it_comes_from(name: str) -> None:
    schedule = find_policy(name).plan(HEALTHY).schedule
    taken_s = 1.03 * timeline_of(schedule, MEASURED).iteration_s

    base = calibrate_profile(MEASURED, schedule, taken_s)

    assert base.host_s > 0
    assert timeline_of(schedule, base).iteration_s == pytest.approx(taken_s, rel=0.002)


def test_a_run_that_was_faster_than_its_operations_has_no_overhead() -> None:
    schedule = find_policy("zb_h1").plan(HEALTHY).schedule

    assert calibrate_profile(replace(MEASURED, host_s=0.5), schedule, 0.001).host_s == 0


def test_delays_of_faults_come_on_top_of_what_messages_take_anyway() -> None:
    truth = HEALTHY.with_links({1: Link(0.020), 2: Link(0.0, 0.030)})

    expected = with_faults(MEASURED, HEALTHY, truth)

    delays = [(round(link.latency_s, 9), link.service_s) for link in expected.links]
    assert delays == [(0.0004, 0.0), (0.0204, 0.0), (0.0004, 0.03)]


def test_a_slow_stage_keeps_what_the_machine_adds_and_a_fast_measurement_takes_nothing_away() -> None:
    slow_stage = Stage(0.015, 0.015, 0.015)
    truth = replace(HEALTHY, stages=(slow_stage, *HEALTHY.stages[1:]))
    measured: Profile = replace(MEASURED, stages=(*MEASURED.stages[:3], Stage(0.009, 0.010, 0.011)))

    expected = with_faults(measured, HEALTHY, truth)

    assert expected.stages[0].work_s == pytest.approx(0.0152 + 0.0153 + 0.0151)
    assert expected.stages[3].work_s == pytest.approx(0.010 + 0.010 + 0.011)
