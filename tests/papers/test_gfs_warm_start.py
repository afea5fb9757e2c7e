"""Forecasts that know the days before a window say what those say that learn these days themselves."""

from __future__ import annotations

import numpy as np

from takeup.cluster.experiment.scenario import select_jobs
from takeup.cluster.policies import find_policy
from takeup.cluster.policies.baselines import FIFO
from takeup.cluster.quota.allocator import SpotQuota
from takeup.cluster.scheduling.outcome import Outcome
from takeup.cluster.simulate import replay
from takeup.cluster.traces import generate
from takeup.core.seeds import Streams
from takeup.papers.gfs.baselines import WarmStart

DAY_S = 86_400.0
WORKLOAD = generate("small", Streams(3))
WORKLOAD = select_jobs(WORKLOAD, pools=WORKLOAD.pools[:1])


def played(source: SpotQuota, from_day: float = 3) -> Outcome:
    return replay(WORKLOAD, find_policy("gfs", source), from_day * DAY_S, 5 * DAY_S, before=FIFO)


def test_a_replay_is_the_same_with_days_that_were_learned_before() -> None:
    taught = WarmStart()
    taught.learn(replay(WORKLOAD, find_policy("fifo", SpotQuota()), 2 * DAY_S, 5 * DAY_S))
    taught.learn(played(SpotQuota()))
    ours, plain = played(SpotQuota(make_forecast=taught)), played(SpotQuota())

    assert np.array_equal(ours.quota_gpus, plain.quota_gpus, equal_nan=True)
    assert np.array_equal(ours.end_s, plain.end_s)
    assert np.isfinite(plain.quota_gpus).any()


def test_what_one_replay_learns_no_other_knows() -> None:
    taught = WarmStart()
    taught.learn(played(SpotQuota()))
    first = played(SpotQuota(make_forecast=taught))

    assert taught().num_hours_seen == 72
    assert np.array_equal(first.quota_gpus, played(SpotQuota(make_forecast=taught)).quota_gpus, equal_nan=True)


def test_hours_that_are_known_are_not_learned_again() -> None:
    taught = WarmStart()
    for from_day in (3, 3, 1):
        taught.learn(played(SpotQuota(), from_day))

    assert taught().num_hours_seen == 72
