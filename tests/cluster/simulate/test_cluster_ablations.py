"""What the parts of GFS are worth, on traces that have nothing to do with the one it was made on."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from cluster.simulate.cluster_traces import drawn, openb_like, philly_like
from takeup.cluster.contract import StaticQuota
from takeup.cluster.model import Workload
from takeup.cluster.policies import find_policy
from takeup.cluster.scheduling.outcome import Metrics
from takeup.cluster.simulate import replay

TRACES: dict[str, Callable[..., Workload]] = {"drawn": drawn, "openb": openb_like, "philly": philly_like}
NUM_SEEDS = 6


def total(name: str, trace: str, what: Callable[[Metrics], float]) -> float:
    workloads = (TRACES[trace](seed, load_share=0.9) for seed in range(NUM_SEEDS))
    return sum(what(replay(jobs, find_policy(name, StaticQuota(0.2))).metrics()) for jobs in workloads)


@pytest.mark.parametrize("trace", sorted(TRACES))
def test_the_cheapest_victims_lose_less_work_than_the_oldest_of_the_tightest_node(trace: str) -> None:
    full, simple = (total(name, trace, lambda it: it.lost_gpu_s) for name in ("gfs", "gfs_simple_preempt"))

    assert full < 0.9 * simple


@pytest.mark.parametrize("trace", sorted(TRACES))
def test_idle_gpus_beyond_the_quota_shorten_the_wait_of_spot_jobs_by_far(trace: str) -> None:
    full, printed = (total(name, trace, lambda it: it.spot_jqt_s.mean) for name in ("gfs", "gfs_published"))

    assert full < 0.5 * printed
