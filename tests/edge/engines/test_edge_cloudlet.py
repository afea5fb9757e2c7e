"""The cloudlet engine without processes: what is played, whose turn it is, when a device sends, what was measured."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge.offloads import four_devices
from takeup.edge.engines import find_engine
from takeup.edge.engines.cloudlet.core import calibrate, run
from takeup.edge.engines.cloudlet.device import pieces
from takeup.edge.engines.cloudlet.engine import CloudletEngine
from takeup.edge.engines.cloudlet.plan import MOST_BPS, CloudletJob, DispatchQueue, DispatchRule, make_plan
from takeup.edge.model import Allocation
from takeup.edge.results import Played, PlayedTask
from takeup.edge.traces.generators import paper_setting, radio_tight_setting
from takeup.errors import BadInput, UnknownName
from takeup.papers.edge.joint import Joint


def job(device: int, start_s: float, due_s: float = 9.0, run_s: float = 1.0) -> CloudletJob:
    return CloudletJob(device, 1000, 0.0, 0.5, start_s, run_s, due_s)


# What is played


def test_times_are_stretched_and_bits_multiplied() -> None:
    instance, allocation = four_devices()
    plan = make_plan(instance, allocation, slowdown=2.0, bits_factor=3.0)

    assert [each.device for each in plan.jobs] == [0, 1, 3]
    assert plan.jobs[1] == CloudletJob(1, 3 * 10_000, 0.0, 0.1, 0.4, 0.04, 6.0)
    assert plan.jobs[1].rate_bps == pytest.approx(8 * 30_000 / 0.1)
    assert plan.expected_s == pytest.approx(0.64)


def test_small_uploads_are_made_large_enough_to_be_shaped() -> None:
    instance = paper_setting(np.random.default_rng(1), 6)
    plan = make_plan(instance, Joint().allocate(instance).allocation, slowdown=10.0)

    assert plan.bits_factor == 100.0
    assert min(each.num_bytes for each in plan.jobs) > 10_000
    assert sum(each.rate_bps for each in plan.jobs) <= MOST_BPS


def test_large_uploads_are_left_as_they_are() -> None:
    instance = radio_tight_setting(np.random.default_rng(1), 6)
    plan = make_plan(instance, Joint().allocate(instance).allocation, slowdown=1.0)

    assert plan.bits_factor == 1.0


@pytest.mark.parametrize("slowdown", [1.0, 30.0])
@pytest.mark.parametrize("seed", range(5))
def test_the_chosen_factor_never_asks_too_much_of_the_machine(slowdown: float, seed: int) -> None:
    instance = paper_setting(np.random.default_rng(seed), 9)
    plan = make_plan(instance, Joint().allocate(instance).allocation, slowdown)

    assert plan.bits_factor in {10.0, 100.0}
    assert sum(each.rate_bps for each in plan.jobs) <= MOST_BPS


def test_nobody_offloads_and_nothing_is_played() -> None:
    instance, allocation = four_devices()
    plan = make_plan(instance, replace(allocation, offloads=np.zeros(4, np.bool_)), slowdown=1.0)

    assert (plan.jobs, plan.expected_s, plan.bits_factor) == ((), 0.0, 1.0)


def test_an_allocation_of_another_instance_is_refused() -> None:
    instance, allocation = four_devices()

    with pytest.raises(BadInput, match="for 2 devices, the instance has 4"):
        make_plan(instance, replace(allocation, offloads=np.ones(2, np.bool_)), slowdown=1.0)


@pytest.mark.parametrize("broken", [{"upload_s": np.full(4, np.nan)}, {"upload_s": np.zeros(4)}])
def test_an_allocation_without_times_is_refused(broken: Any) -> None:
    instance, allocation = four_devices()

    with pytest.raises(BadInput, match=r"device 0 would upload .* passes first_violation"):
        make_plan(instance, replace(allocation, **broken), slowdown=1.0)


@pytest.mark.parametrize(
    ("settings", "slowdown", "bits_factor", "found"),
    [
        ({"num_cores": 10_000}, 1.0, 1.0, "10,000 cores on this machine"),
        ({}, 1e-4, 1.0, "Mbit/s of all uploads.*raise the slowdown"),
        ({}, 1000.0, 1.0, "seconds it might take.*lower the slowdown"),
        ({}, 190.0, 12_000.0, "bytes of all uploads.*lower the bits factor"),
    ],
)
def test_what_the_machine_cannot_do_is_refused(settings: Any, slowdown: float, bits_factor: float, found: str) -> None:
    instance, allocation = four_devices()

    with pytest.raises(BadInput, match=found):
        make_plan(replace(instance, **settings), allocation, slowdown, bits_factor)


def test_more_devices_than_processes_are_refused() -> None:
    instance = paper_setting(np.random.default_rng(1), 200, 200)
    times_s = np.full(200, 0.01)
    allocation = Allocation(np.ones(200, np.bool_), np.arange(200), np.ones(200), times_s, times_s, times_s)

    with pytest.raises(BadInput, match=r"200 devices that offload.*128"):
        make_plan(instance, allocation, slowdown=10.0, bits_factor=1.0)


def test_a_plan_says_what_would_happen() -> None:
    plan = CloudletEngine(slowdown=10, bits_factor=2).plan(*four_devices())

    assert str(plan) == "3 devices upload 60,000 bytes to 1 cores in 3.20 s (a second takes 10 s, a bit 2 bits)"


@pytest.mark.parametrize("settings", [{"slowdown": 0.0}, {"tolerance_s": float("nan")}, {"bits_factor": -1.0}])
def test_numbers_that_make_no_sense_are_refused(settings: Any) -> None:
    with pytest.raises(BadInput, match="give a finite number above 0"):
        CloudletEngine(**settings)


@pytest.mark.parametrize("settings", [{"link": "wifi"}, {"dispatch": "last"}])
def test_unknown_words_are_named(settings: Any) -> None:
    with pytest.raises(UnknownName, match=f"'{next(iter(settings.values()))}'"):
        CloudletEngine(**settings)


def test_the_engine_is_found_by_name() -> None:
    assert find_engine("cloudlet") is CloudletEngine
    with pytest.raises(UnknownName, match="did you mean 'cloudlet'"):
        find_engine("cloudled")


# Whose turn it is


def test_a_planned_task_waits_for_its_start_and_its_upload() -> None:
    first, second = job(0, start_s=1.0), job(1, start_s=2.0)
    queue = DispatchQueue([second, first], "planned")
    queue.complete(second)

    assert queue.take(1.5) is None
    assert queue.wake_s() == 2.0
    assert queue.take(2.0) is second


def test_a_task_that_was_late_goes_first_once_it_is_complete() -> None:
    first, second = job(0, start_s=1.0), job(1, start_s=2.0)
    queue = DispatchQueue([first, second], "planned")
    queue.complete(second)
    queue.complete(first)

    assert (queue.take(3.0), queue.take(3.0), queue.take(3.0)) == (first, second, None)


def test_edf_takes_the_earliest_deadline_that_is_complete() -> None:
    urgent, complete, relaxed = job(0, 5.0, due_s=6.0), job(1, 5.0, due_s=7.0), job(2, 1.0, due_s=8.0)
    queue = DispatchQueue([urgent, complete, relaxed], "edf")
    queue.complete(relaxed)
    queue.complete(complete)

    assert queue.take(0.0) is complete


@pytest.mark.parametrize(("rule", "not_before_s"), [("planned", 1.0), ("early", 0.0), ("edf", 0.0)])
def test_only_who_is_first_in_line_and_complete_is_taken_ahead(rule: DispatchRule, not_before_s: float) -> None:
    first, second = job(0, start_s=1.0, due_s=3.0), job(1, start_s=2.0, due_s=4.0)
    queue = DispatchQueue([first, second], rule)
    queue.complete(second)

    assert queue.take_ahead() is None
    queue.complete(first)
    assert queue.take_ahead() is first
    assert queue.not_before_s(first) == not_before_s


def test_who_failed_keeps_nobody_waiting_and_who_is_put_back_keeps_its_place() -> None:
    first, second, third = (job(device, start_s=1.0 + device) for device in range(3))
    queue = DispatchQueue([first, second, third], "early")
    queue.complete(second)
    queue.complete(third)
    queue.drop(first)

    assert queue.take_ahead() is second
    queue.put_back(second)
    assert (queue.take_ahead(), queue.take_ahead(), queue.take_ahead()) == (second, third, None)


@given(
    st.lists(st.tuples(st.floats(0.01, 2), st.floats(0.01, 2), st.floats(0, 1)), min_size=1, max_size=8),
    st.sampled_from(["early", "planned"]),
)
def test_a_plan_is_never_overrun_if_uploads_are_in_time(
    gaps: list[tuple[float, float, float]], rule: DispatchRule
) -> None:
    jobs, now_s = [], 0.0
    for device, (idle_s, run_s, upload_share) in enumerate(gaps):
        start_s = now_s + idle_s
        jobs.append(CloudletJob(device, 1, 0.0, upload_share * start_s, start_s, run_s, start_s + run_s))
        now_s = start_s + run_s

    assert all(start_s <= planned.start_s + 1e-9 for planned, start_s in one_core(jobs, rule))


def one_core(jobs: list[CloudletJob], rule: DispatchRule) -> list[tuple[CloudletJob, float]]:
    """Who begins when on a single core, if everything takes as long as planned."""
    queue, now_s = DispatchQueue(jobs, rule), 0.0
    begun: list[tuple[CloudletJob, float]] = []
    while len(begun) < len(jobs):
        for each in jobs:
            if each.upload_s <= now_s:
                queue.complete(each)
        taken = queue.take_ahead() or queue.take(now_s)
        if taken is None:
            moments = [m for each in jobs for m in (each.upload_s, each.start_s) if m > now_s]
            now_s = min(moments)
        else:
            begun.append((taken, max(now_s, queue.not_before_s(taken))))
            now_s = begun[-1][1] + taken.run_s
    return begun


# When a device sends, how a core works


@given(st.integers(1, 10**6), st.floats(0, 10), st.floats(1e-4, 10))
def test_pieces_are_the_upload_at_its_rate(num_bytes: int, begin_s: float, duration_s: float) -> None:
    sent = list(pieces(num_bytes, begin_s, begin_s + duration_s))
    totals = np.cumsum([size for size, _ in sent])
    moments_s = np.array([moment_s for _, moment_s in sent])

    assert totals[-1] == num_bytes
    assert moments_s[-1] == pytest.approx(begin_s + duration_s)
    assert (totals <= num_bytes * (moments_s - begin_s) / duration_s + 1).all()
    assert min(size for size, _ in sent) > 0


def test_a_core_measures_its_speed_and_works_as_long_as_asked() -> None:
    hashes_per_s = calibrate(5)
    begin_s = time.thread_time()
    run(0.02, hashes_per_s)
    took_s = time.thread_time() - begin_s

    assert hashes_per_s > 1000
    assert took_s >= 0.02


# What the measurements say


def played(*ends_s: float | None, slowdown: float = 10.0) -> Played:
    tasks = tuple(
        PlayedTask(device, 1, 0.0, 0.1, 0.5, 1.0, 1.0, end_s=end_s, failure="" if end_s else "its link broke")
        for device, end_s in enumerate(ends_s)
    )
    return Played(tasks, "user-space", "planned", slowdown, 1.0, tolerance_s=0.002)


def test_a_deadline_is_met_up_to_the_tolerance_of_the_machine() -> None:
    result = played(0.9, 1.0001, 1.0003, None)

    assert [result.met(task) for task in result.tasks] == [True, True, False, False]
    assert (result.num_met, result.num_late, result.num_failed) == (2, 1, 1)


def test_slack_is_by_the_clock_of_the_machine() -> None:
    result = played(0.9, 1.0, 1.1, None)

    assert result.slack_used_s(0.5) == pytest.approx(0.0)
    assert result.slack_used_s(1.0) == pytest.approx(1.0)
    assert result.tasks[3].over_plan_s is None
    assert played(None).slack_used_s(0.5) is None
