"""The books of a pool in the middle of replays: what the arrays say is what their workers say."""

from __future__ import annotations

import heapq
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cluster.simulate.cluster_traces import drawn
from takeup.cluster.model import Grade, Kind, Workload
from takeup.cluster.policies import POLICIES
from takeup.cluster.scheduling.layout import (
    FREE_GPUS,
    HIGH_GPUS,
    NUM_RUNNING,
    NUM_WAITING_HIGH,
    NUM_WAITING_SPOT,
    RUNNING_MILLI,
    SHARE_ROOM_MILLI,
    Fleet,
    JobArrays,
    empty_fleet,
)
from takeup.cluster.simulate.event_loop import EventQueue, ReplayRecord, empty_queue, empty_record, pop, push, run_until
from takeup.core.compiled import kernel

QUOTA = np.array([1.0]), np.array([30.0])


def cuts(workload: Workload, name: str, num_cuts: int) -> Iterator[tuple[Fleet, ReplayRecord, float]]:
    """The same pool again and again, later and later."""
    none = np.zeros(workload.num_jobs, np.int64)
    fields = (workload.job_gpus, workload.job_workers, workload.job_submit_s, workload.job_guarantee_h)
    fleet = empty_fleet(workload.node_gpus, JobArrays(workload.job_kind, none, *fields, workload.job_checkpoint_s))
    story, agenda = empty_record(workload.job_duration_s, 50, 1, 1000), empty_queue(9 * workload.num_jobs + 64)
    clock = np.array([0.0, -1.0])
    for until_s in np.linspace(0, float(workload.job_submit_s[-1]), num_cuts + 1)[1:]:
        run_until(fleet, story, agenda, clock, float(until_s), *QUOTA, POLICIES[name])
        check(fleet)
        yield fleet, story, float(until_s)


def check(fleet: Fleet) -> None:
    """Work everything out anew from the workers of the jobs that run."""
    running = fleet.running[: fleet.totals[NUM_RUNNING]]
    assert sorted(running.tolist()) == np.flatnonzero(fleet.jobs["running"]).tolist()
    whole = np.zeros(len(fleet.nodes), np.int64)
    milli = np.zeros((len(fleet.nodes), 2), np.int64)
    shares = np.zeros_like(fleet.share_room_milli)
    sharers = np.zeros_like(fleet.share_high)
    for number in running.tolist():
        job = fleet.jobs[number]
        for worker in fleet.workers[job["first_worker"] : job["first_worker"] + job["workers"]]:
            node, slot = worker["node"], worker["slot"]
            milli[node, job["kind"]] += job["milli"]
            whole[node] += job["gpus"]
            if job["gpus"] == 0:
                shares[node, slot] += job["milli"]
                sharers[node, slot] += job["kind"] == Kind.HIGH

    assert (fleet.share_room_milli == 1000 - shares).all()
    assert (fleet.share_high == sharers).all()
    assert (fleet.nodes["free"] == fleet.nodes["size"] - whole - (shares > 0).sum(axis=1)).all()
    assert (fleet.nodes["free"] >= 0).all()
    assert (shares <= 1000).all()
    assert fleet.nodes["high_milli"].tolist() == milli[:, 0].tolist()
    assert fleet.nodes["spot_milli"].tolist() == milli[:, 1].tolist()
    check_totals(fleet, running)
    check_queues(fleet)


def check_totals(fleet: Fleet, running: npt.NDArray[np.int64]) -> None:
    jobs = fleet.jobs[running]
    for grade in Grade:
        held = (jobs["milli"] * jobs["workers"])[jobs["grade"] == grade].sum()
        assert fleet.totals[RUNNING_MILLI + grade] == held
    assert fleet.totals[FREE_GPUS] == fleet.nodes["free"].sum()
    assert fleet.totals[HIGH_GPUS] == fleet.nodes["high_gpus"].sum()
    is_shared = fleet.share_room_milli < 1000
    assert fleet.totals[SHARE_ROOM_MILLI] == fleet.share_room_milli[is_shared].sum()
    assert not fleet.jobs["mark"].any()
    assert not fleet.nodes["taken"].any()
    assert not fleet.nodes["gain"].any()
    kept = fleet.jobs["nominated"] >= 0
    assert fleet.nodes["reserved"].sum() == (np.maximum(1, fleet.jobs["gpus"]) * fleet.jobs["workers"])[kept].sum()


def check_queues(fleet: Fleet) -> None:
    waiting = [
        *fleet.high_queue[: fleet.totals[NUM_WAITING_HIGH]].tolist(),
        *fleet.spot_queue[: fleet.totals[NUM_WAITING_SPOT]].tolist(),
    ]
    assert len(waiting) == len(set(waiting))
    assert sorted(waiting) == np.flatnonzero(fleet.jobs["waiting"]).tolist()
    assert not fleet.jobs["running"][waiting].any()


@pytest.mark.parametrize("name", sorted(POLICIES))
def test_the_books_agree_with_the_workers_at_every_moment(name: str) -> None:
    busy = [int(fleet.totals[NUM_RUNNING]) for fleet, _, _ in cuts(drawn(7, num_jobs=250, load_share=1.2), name, 40)]

    assert min(busy) > 0


@given(st.integers(0, 1000), st.sampled_from(["gfs", "gfs_notice", "kube", "chronus"]))
@settings(max_examples=10, deadline=None)
def test_the_books_agree_on_any_workload(seed: int, name: str) -> None:
    assert sum(1 for _ in cuts(drawn(seed, num_jobs=100, load_share=1.5), name, 25)) == 25


@pytest.mark.parametrize("name", ["gfs", "slurm"])
def test_queues_are_in_their_order(name: str) -> None:
    rules = POLICIES[name]
    for fleet, _, _ in cuts(drawn(11, num_jobs=250, load_share=1.5), name, 10):
        spot = fleet.spot_queue[: fleet.totals[NUM_WAITING_SPOT]].tolist()
        keys = [(-int(fleet.jobs[n]["milli"]), int(fleet.jobs[n]["workers"]), n) for n in spot]

        assert keys == sorted(keys) if rules.spot_order else spot == sorted(spot)


def test_demand_is_what_waits_and_runs() -> None:
    workload = drawn(2, num_jobs=150)
    for fleet, story, now_s in cuts(workload, "gfs", 10):
        here = (workload.job_submit_s < now_s) & ~np.isfinite(story.end_s) & (workload.job_kind == Kind.HIGH)
        asked = (fleet.jobs["milli"] * fleet.jobs["workers"] / 1000.0)[here].sum()

        assert story.demand_now[0] == pytest.approx(asked)


@kernel
def _in_order(agenda: EventQueue, times: npt.NDArray[np.float64], found: npt.NDArray[np.int64]) -> None:
    half = len(times) // 2
    for number in range(half):
        push(agenda, times[number], 0, number, 0)
    taken = 0
    for number in range(half, len(times)):
        found[taken] = pop(agenda)[1]
        taken += 1
        push(agenda, times[number], 0, number, 0)
    while taken < len(times):
        found[taken] = pop(agenda)[1]
        taken += 1


@given(st.lists(st.integers(0, 9), min_size=2, max_size=60).filter(lambda times: len(times) % 2 == 0))
@settings(max_examples=60, deadline=None)
def test_an_agenda_is_a_heap_in_which_equal_times_keep_their_order(times: list[int]) -> None:
    found = np.zeros(len(times), np.int64)
    _in_order(empty_queue(len(times) + 1), np.array(times, np.float64), found)
    half = len(times) // 2
    heap = [(time, number) for number, time in enumerate(times[:half])]
    heapq.heapify(heap)
    expected: list[int] = []
    for number in range(half, len(times)):
        expected.append(heapq.heappop(heap)[1])
        heapq.heappush(heap, (times[number], number))
    expected += [heapq.heappop(heap)[1] for _ in range(len(heap))]

    assert found.tolist() == expected
