"""A pool at one moment: why GPUs are idle, and how much work is left."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from cluster.simulate.cluster_traces import HIGH, SPOT, drawn, philly_like, workload
from takeup.cluster.contract import StaticQuota
from takeup.cluster.model import Workload
from takeup.cluster.policies import find_policy
from takeup.cluster.simulate import replay
from takeup.cluster.simulate.replay import IdleReason, ReplayMoment

HOUR_S = 3600.0
Seen = tuple[float, int, IdleReason, list[float]]


def looked(jobs: Workload, name: str = "gfs", to_s: float | None = None, quota_share: float = 0.0) -> list[Seen]:
    """When, how many GPUs were idle and why, and the GPU-hours that were left."""
    seen: list[Seen] = []

    def look(moment: ReplayMoment) -> None:
        left_h = [float(it) / HOUR_S for it in moment.left_gpu_s()]
        seen.append((moment.now_s, int(moment.idle_gpus.sum()), moment.why_idle(), left_h))

    replay(jobs, find_policy(name, StaticQuota(quota_share)), to_s=to_s, look=look)
    return seen


def at(seen: Sequence[Seen], when_s: float) -> Seen:
    return next(it for it in seen if it[0] == when_s)


def test_who_looks_on_sees_every_five_minutes_with_a_spot_job_and_the_end() -> None:
    jobs = workload((SPOT, 1, 700.0, 800.0), (HIGH, 1, 5000.0, 10.0))
    times = [it[0] for it in looked(jobs, to_s=9000.0)]

    assert times == [600.0, 900.0, 1200.0, 1500.0, 9000.0]


def test_gpus_are_idle_because_nobody_waits() -> None:
    jobs = workload((SPOT, 3, 0.0, HOUR_S), nodes=(8,))

    assert at(looked(jobs, to_s=HOUR_S), 300.0)[1:3] == (5, IdleReason.NONE_WAITS)


def test_gpus_are_idle_because_all_who_wait_ask_for_more() -> None:
    jobs = workload((HIGH, 6, 0.0, HOUR_S), (SPOT, 4, 1.0, HOUR_S), nodes=(8,))

    assert at(looked(jobs, to_s=HOUR_S), 300.0)[1:3] == (2, IdleReason.TOO_WIDE)


def test_gpus_are_idle_because_they_are_on_different_nodes() -> None:
    jobs = workload((HIGH, 6, 0.0, HOUR_S), (HIGH, 6, 0.0, HOUR_S), (SPOT, 4, 1.0, HOUR_S), nodes=(8, 8))

    assert at(looked(jobs, to_s=HOUR_S), 300.0)[1:3] == (4, IdleReason.SCATTERED)


def test_the_printed_method_leaves_gpus_idle_beside_a_job_that_fits() -> None:
    jobs = workload((SPOT, 4, 0.0, HOUR_S), nodes=(8,))

    assert at(looked(jobs, "gfs_published", to_s=HOUR_S), 300.0)[1:3] == (8, IdleReason.FITS)
    assert at(looked(jobs, "gfs", to_s=HOUR_S), 300.0)[1:3] == (4, IdleReason.NONE_WAITS)


def test_a_shared_gpu_has_room_for_who_asks_for_a_part_of_one() -> None:
    jobs = workload((HIGH, 7, 0.0, HOUR_S), (HIGH, 0.5, 0.0, HOUR_S), (SPOT, 0.25, 1.0, HOUR_S), nodes=(8,))

    assert at(looked(jobs, "gfs_published", to_s=HOUR_S), 300.0)[1:3] == (0, IdleReason.FITS)


def test_work_is_left_as_long_as_it_is_not_done_and_again_if_it_was_lost() -> None:
    """A spot job of two hours on four GPUs; after one and a half a job comes for which it must leave."""
    jobs = workload((SPOT, 4, 0.0, 2 * HOUR_S), (HIGH, 8, 1.5 * HOUR_S, HOUR_S), nodes=(8,))
    seen = looked(jobs, "gfs_published", to_s=4 * HOUR_S, quota_share=1.0)
    restart_h = 40 / HOUR_S  # paid by who evicts, and by who was evicted

    assert at(seen, 0.5 * HOUR_S)[3] == pytest.approx([6.0, 8.0])
    assert at(seen, 2.0 * HOUR_S)[3] == pytest.approx([4.0, 4.0 + 8 * restart_h])  # all since a checkpoint is lost
    assert at(seen, 3.0 * HOUR_S)[3] == pytest.approx([2.0 + 4 * 2 * restart_h, 0.0])
    assert at(seen, 4 * HOUR_S)[3] == [0.0, 0.0]


@pytest.mark.parametrize("seed", range(3))
def test_whoever_looks_on_changes_nothing(seed: int) -> None:
    jobs = drawn(seed, load_share=1.2)
    alone = replay(jobs, find_policy("gfs", StaticQuota(0.2)))
    watched = replay(jobs, find_policy("gfs", StaticQuota(0.2)), look=lambda moment: None)

    assert watched.metrics() == alone.metrics()
    assert watched.allocated_gpu_s[:, :-1].tolist() == alone.allocated_gpu_s[:, :-1].tolist()


@pytest.mark.parametrize("name", ["gfs", "gfs_notice"])
def test_nothing_that_fits_waits_at_any_look(name: str) -> None:
    reasons = [it[2] for seed in range(3) for it in looked(philly_like(seed, load_share=1.2), name, quota_share=0.2)]

    assert IdleReason.FITS not in reasons
    assert {IdleReason.TOO_WIDE, IdleReason.SCATTERED} <= set(reasons)
