"""Small workloads and replays, for tests of what is made of them."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from math import inf
from typing import Any

import numpy as np

from takeup.cluster.model import Workload
from takeup.cluster.policies import find_policy
from takeup.cluster.quota.allocator import SpotQuota
from takeup.cluster.scheduling.outcome import Outcome
from takeup.cluster.simulate import replay

__all__ = ["HOUR_S", "outcome", "two_pools", "workload"]

HOUR_S = 3600.0


def workload(jobs: list[tuple[int, int, float, int, float, float]], nodes: dict[str, int], **changes: Any) -> Workload:
    """Jobs as (kind, pool, GPUs, workers, submit in h, duration in h); nodes of eight GPUs by pool."""
    jobs = sorted(jobs, key=lambda job: job[4])
    columns = list(zip(*jobs, strict=True)) if jobs else [()] * 6
    kind, pool, gpus, workers, submit, duration = (np.array(column) for column in columns)
    values: dict[str, Any] = {
        "name": "made up",
        "pools": tuple(nodes),
        "organisations": ("us",),
        "node_pool": np.repeat(np.arange(len(nodes)), list(nodes.values())),
        "node_gpus": np.full(sum(nodes.values()), 8),
        "job_kind": kind.astype(np.int64),
        "job_pool": pool.astype(np.int64),
        "job_organisation": np.zeros(len(jobs), np.int64),
        "job_gpus": gpus.astype(np.float64),
        "job_workers": workers.astype(np.int64),
        "job_submit_s": submit * HOUR_S,
        "job_duration_s": duration * HOUR_S,
        "job_guarantee_h": np.ones(len(jobs)),
        "job_checkpoint_s": np.full(len(jobs), HOUR_S),
    }
    return Workload(**(values | changes))


def two_pools() -> Workload:
    """Three days; in pool `a` a high-priority job evicts a spot job that has run for a day and half an hour."""
    return workload(
        [
            (1, 0, 8.0, 1, 0.0, 30.0),  # spot, alone on its node until ...
            (0, 0, 8.0, 1, 24.5, 10.0),  # ... this one comes
            (0, 1, 4.0, 1, 2.0, 40.0),
            (1, 1, 2.0, 1, 3.0, 5.0),
            (0, 1, 1.0, 1, 71.9, 1.0),
        ],
        {"a": 1, "b": 1},
    )


@lru_cache
def outcome(policy: str = "gfs", to_h: float = 72.0) -> Outcome:
    """The three days under a policy."""
    scheduler = find_policy(policy, SpotQuota())
    at_once = replace(scheduler, rules=scheduler.rules._replace(wait_price=inf))  # so that the figures stay simple
    return replay(two_pools(), at_once, 0.0, to_h * HOUR_S)
