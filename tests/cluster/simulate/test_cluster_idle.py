"""Nothing is left idle that somebody who waits could use: the most that any scheduler without migration can do.

A day by day comparison with FIFO cannot be won: both do the same work in the end, so whoever does more of it on one day
has less left for another. What can be won is every single moment, and most of what was delivered up to it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import pytest

from cluster.simulate.cluster_traces import HIGH, SPOT, drawn, openb_like, philly_like, workload
from takeup.cluster.contract import StaticQuota
from takeup.cluster.model import Workload
from takeup.cluster.policies import POLICIES, find_policy
from takeup.cluster.scheduling.layout import NUM_WAITING_HIGH, NUM_WAITING_SPOT, Fleet, JobArrays, empty_fleet
from takeup.cluster.simulate import replay
from takeup.cluster.simulate.event_loop import empty_queue, empty_record, run_until

DAY_S = 86_400.0
Make = Callable[..., Workload]
TRACES: dict[str, Make] = {"drawn": drawn, "openb": openb_like, "philly": philly_like}


def moments(jobs: Workload, name: str, quota_gpus: float, num_moments: int) -> Iterator[Fleet]:
    """The pool again and again, whenever everything that could be decided has been."""
    none = np.zeros(jobs.num_jobs, np.int64)
    fields = (jobs.job_gpus, jobs.job_workers, jobs.job_submit_s, jobs.job_guarantee_h, jobs.job_checkpoint_s)
    fleet = empty_fleet(jobs.node_gpus, JobArrays(jobs.job_kind, none, *fields))
    story, agenda = empty_record(jobs.job_duration_s, 100, 1, 1000), empty_queue(9 * jobs.num_jobs + 64)
    clock, quota = np.array([0.0, -1.0]), (np.array([1.0]), np.array([quota_gpus]))
    for until_s in np.linspace(0, float(jobs.job_submit_s[-1]), num_moments + 1)[1:]:
        run_until(fleet, story, agenda, clock, float(until_s), *quota, POLICIES[name])
        yield fleet


def waiting(fleet: Fleet) -> list[int]:
    high, spot = fleet.totals[NUM_WAITING_HIGH], fleet.totals[NUM_WAITING_SPOT]
    return [*fleet.high_queue[:high].tolist(), *fleet.spot_queue[:spot].tolist()]


def would_fit(fleet: Fleet, number: int) -> bool:
    """Counted from the nodes: places for whole GPUs, or room on shared ones."""
    job = fleet.jobs[number]
    if job["gpus"] > 0:
        return bool((fleet.nodes["free"] // job["gpus"]).sum() >= job["workers"])
    shared = np.where(fleet.share_room_milli < 1000, fleet.share_room_milli, 0)
    places = (shared // job["milli"]).sum() + fleet.nodes["free"].sum() * (1000 // job["milli"])
    return bool(places >= job["workers"])


@pytest.mark.parametrize("trace", sorted(TRACES))
@pytest.mark.parametrize("name", ["fifo", "gfs"])
def test_at_no_moment_does_somebody_wait_who_would_fit(trace: str, name: str) -> None:
    num_waiting = 0
    for seed in range(3):
        for fleet in moments(TRACES[trace](seed, load_share=1.3), name, 20.0, 60):
            assert not any(would_fit(fleet, number) for number in waiting(fleet))
            num_waiting += len(waiting(fleet))
    assert num_waiting > 0


def test_the_printed_method_keeps_spot_jobs_waiting_beside_idle_gpus() -> None:
    idle = (
        any(would_fit(fleet, number) for number in waiting(fleet))
        for fleet in moments(philly_like(0, load_share=0.8), "gfs_published", 20.0, 60)
    )

    assert any(idle)


@pytest.mark.parametrize("name", ["gfs_published", "chronus_published"])
def test_who_works_ahead_has_less_left_for_another_day(name: str) -> None:
    """Why no scheduler is above FIFO on every day: the same work is done in the end, and nobody was evicted.

    Nor is one that may move every job every 20 minutes for nothing.
    """
    jobs = workload((HIGH, 4, 0, DAY_S), (HIGH, 1, 1, DAY_S - 1), (HIGH, 4, 1, DAY_S - 1), nodes=(8,))
    ours, fifo = (replay(jobs, find_policy(each), to_s=2 * DAY_S).daily() for each in (name, "fifo"))

    assert ours == pytest.approx([1, 1 / 8], abs=1e-4)
    assert fifo == pytest.approx([5 / 8, 4 / 8], abs=1e-4)


@pytest.mark.parametrize("trace", sorted(TRACES))
def test_where_nobody_is_evicted_more_on_one_day_is_less_on_another(trace: str) -> None:
    """All do the same work in the end, so that no scheduler is above another on one day and below on none."""
    jobs = TRACES[trace](1, load_share=1.3)
    only_high = replace(jobs, job_kind=np.zeros_like(jobs.job_kind))
    ours, fifo = (replay(only_high, find_policy(name), to_s=40 * DAY_S).daily() for name in ("gfs", "fifo"))

    assert ours.sum() == pytest.approx(fifo.sum())
    assert (ours > fifo + 1e-9).any() == (ours < fifo - 1e-9).any()


def test_delivered_gpu_time_adds_up_the_hours_before() -> None:
    jobs = workload((HIGH, 8, 0, 5400), (HIGH, 4, 7200, 3600), nodes=(8,))
    outcome = replay(jobs, find_policy("fifo"), to_s=4 * 3600)

    assert outcome.delivered_gpu_h().tolist() == [8, 12, 16, 16]


def test_a_wide_gang_that_is_evicted_waits_for_a_part_of_the_pool_while_fifo_lets_others_wait() -> None:
    """The one way to deliver less than FIFO: each small arrival stops the gang, and the others are too few to fill in.

    Two nodes; a spot gang of both for ten hours, and from its second hour on a job of high priority every three.
    """
    arrivals = [(HIGH, 1.0, (1 + 3 * number) * 3600.0, 7200.0) for number in range(4)]
    jobs = workload((SPOT, 8, 0, 36_000), *arrivals, nodes=(8, 8), workers=[2, 1, 1, 1, 1])
    ours, fifo = (replay(jobs, find_policy(name, StaticQuota(0.0)), to_s=11 * 3600) for name in ("kube", "fifo"))

    assert ours.num_evictions[0] == 4
    assert ours.delivered_gpu_h()[-1] < 0.5 * fifo.delivered_gpu_h()[-1]
    assert ours.metrics().high_jqt_s.mean == 0
    assert fifo.metrics().high_jqt_s.mean > 4 * 3600


@pytest.mark.parametrize("trace", sorted(TRACES))
@pytest.mark.parametrize("load_share", [0.7, 0.9, 1.1])
def test_beside_fifo_little_is_missing_at_any_hour(trace: str, load_share: float) -> None:
    """In hours of the whole pool, on traces that have nothing to do with the one `gfs` was made on.

    The bound is half an hour: a high-priority job waits until an eviction pays, and idle GPUs that are too few for it
    may stay idle until then. The lowest value is -0.456 (drawn, 0.9, seed 3); if it evicts at once it is -0.065 there.
    """
    leads_h = []
    for seed in range(4):
        jobs = TRACES[trace](seed, load_share=load_share)
        ours, fifo = (replay(jobs, find_policy(name, StaticQuota(0.2))).delivered_gpu_h() for name in ("gfs", "fifo"))
        leads_h.append((ours - fifo) / float(jobs.node_gpus.sum()))

    assert min(lead_h.min() for lead_h in leads_h) > -0.5


@pytest.mark.parametrize("trace", sorted(TRACES))
def test_beside_fifo_high_priority_jobs_wait_far_less_for_little_allocation(trace: str) -> None:
    ours_s, fifo_s, ours_work, fifo_work = 0.0, 0.0, 0.0, 0.0
    for seed in range(3):
        jobs = TRACES[trace](seed, load_share=1.1)
        ours, fifo = (replay(jobs, find_policy(name, StaticQuota(0.2))) for name in ("gfs", "fifo"))
        ours_s, fifo_s = ours_s + ours.metrics().high_jqt_s.mean, fifo_s + fifo.metrics().high_jqt_s.mean
        ours_work, fifo_work = ours_work + ours.metrics().allocation_rate, fifo_work + fifo.metrics().allocation_rate

    assert ours_s < 0.5 * fifo_s
    assert ours_work > 0.97 * fifo_work
