"""Replays by hand, what every replay must keep, and what the numbers of a window mean."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cluster.simulate.cluster_traces import HIGH, SPOT, drawn, workload
from takeup.cluster.contract import Evidence, StaticQuota
from takeup.cluster.model import Grade, Kind, Quota
from takeup.cluster.policies import POLICIES, find_policy
from takeup.cluster.policies.rule_based import RuleBasedScheduler
from takeup.cluster.scheduling.outcome import ShareEstimate
from takeup.cluster.scheduling.rules import CHEAPEST, TRY_SMALLER, SchedulerRules
from takeup.cluster.simulate import ReplayPrefix, replay
from takeup.errors import BadInput

LEASED = {"chronus", "chronus_published"}
PREEMPTS = SchedulerRules(high_failure=TRY_SMALLER, spot_failure=TRY_SMALLER, victims=CHEAPEST)


def test_a_job_on_an_empty_pool_starts_at_once_and_ends_after_its_duration() -> None:
    outcome = replay(workload((HIGH, 8, 100, 50)), find_policy("fifo"))

    assert (outcome.first_start_s[0], outcome.end_s[0], outcome.queued_s[0]) == (100, 150, 0)
    assert outcome.allocated_gpu_s.sum() == 8 * 50


def test_a_job_waits_until_the_one_before_it_is_done() -> None:
    outcome = replay(workload((HIGH, 8, 0, 1000), (SPOT, 8, 10, 50), (HIGH, 1, 20, 5)), find_policy("fifo_strict"))

    assert outcome.first_start_s.tolist() == [0, 1000, 1050]
    assert outcome.queued_s.tolist() == [0, 990, 1030]


def test_who_fits_passes_one_that_does_not_unless_the_queue_is_strict() -> None:
    jobs = workload((HIGH, 4, 0, 1000), (HIGH, 8, 10, 50), (SPOT, 4, 20, 100))

    assert replay(jobs, find_policy("fifo")).first_start_s.tolist() == [0, 1000, 20]
    assert replay(jobs, find_policy("fifo_strict")).first_start_s.tolist() == [0, 1000, 1050]


def test_an_evicted_job_loses_what_it_did_since_its_checkpoint_and_pays_to_restart() -> None:
    jobs = workload((SPOT, 8, 0, 7200), (HIGH, 8, 4000, 1000))
    outcome = replay(jobs, RuleBasedScheduler("mine", PREEMPTS))

    # The spot job has done 4000 s of which 3600 are saved; the other pays 40 s for the eviction, then it pays 40 s.
    assert outcome.end_s.tolist() == [5040 + 40 + 3600, 4000 + 40 + 1000]
    assert outcome.lost_gpu_s.tolist() == [400 * 8, 0]
    assert outcome.queued_s.tolist() == [1040, 0]
    assert outcome.num_evictions.tolist() == [1, 0]


def test_checkpoints_continue_across_restarts() -> None:
    jobs = workload((SPOT, 8, 0, 9000), (HIGH, 8, 4000, 960), (HIGH, 8, 7000, 960), checkpoint_s=1500)
    outcome = replay(jobs, RuleBasedScheduler("mine", PREEMPTS))

    # Saved: 3000 of 4000. Again from 5000 + 40 to 7000: 3000 + 1960 = 4960, of which 4500 are saved.
    assert outcome.lost_gpu_s[0] == (1000 + 460) * 8
    assert outcome.end_s[0] == 8000 + 40 + (9000 - 4500)


def test_a_job_without_checkpoints_loses_everything() -> None:
    jobs = workload((SPOT, 8, 0, 7200), (HIGH, 8, 4000, 1000), checkpoint_s=np.inf)

    assert replay(jobs, RuleBasedScheduler("mine", PREEMPTS)).lost_gpu_s[0] == 4000 * 8


def test_on_notice_a_victim_saves_its_work_and_the_other_waits_for_it() -> None:
    jobs = workload((SPOT, 8, 0, 7200), (HIGH, 8, 3000, 1000))
    outcome = replay(jobs, RuleBasedScheduler("mine", PREEMPTS._replace(notice_s=60.0)))

    assert outcome.lost_gpu_s[0] == 0
    assert outcome.first_start_s[1] == 3060
    assert outcome.end_s[0] == 3060 + 1040 + 40 + (7200 - 3060)


def test_notice_is_given_only_where_it_saves_more_than_the_wait_costs() -> None:
    jobs = workload((SPOT, 8, 0, 7200), (HIGH, 8, 3630, 1000))
    outcome = replay(jobs, RuleBasedScheduler("mine", PREEMPTS._replace(notice_s=60.0)))

    assert outcome.first_start_s[1] == 3630
    assert outcome.lost_gpu_s[0] == 30 * 8


def test_leases_put_every_job_back_without_losing_work() -> None:
    outcome = replay(workload((SPOT, 8, 0, 3000), (HIGH, 8, 100, 600)), find_policy("chronus"))

    # At 1200 s the lease is over: the high-priority job goes first; the spot job comes back when it is done.
    assert outcome.first_start_s.tolist() == [0, 1200]
    assert outcome.end_s[1] == 1800
    assert outcome.end_s[0] == 1800 + 120 + 600 + 120 + 1080 + 120 + 120
    assert outcome.lost_gpu_s.sum() == 0


def test_a_quota_keeps_spot_jobs_waiting_until_it_allows_them() -> None:
    class Later:
        def quota(self, pool: str, evidence: Evidence) -> Quota:
            return Quota(pool, {1.0: 8.0 if evidence.now_s >= 900 else 0.0})

    outcome = replay(workload((SPOT, 8, 10, 100)), find_policy("gfs_published", Later()), to_s=7200)

    assert outcome.first_start_s[0] == 900


def test_beyond_the_quota_idle_gpus_are_used_without_a_promise() -> None:
    outcome = replay(workload((SPOT, 8, 10, 7300)), find_policy("gfs", StaticQuota(0.0)))

    assert outcome.first_start_s[0] == 10
    assert outcome.allocated_gpu_s.sum(axis=(0, 1))[Grade.OPPORTUNISTIC] == 8 * 7300


def test_where_only_promises_are_sold_idle_gpus_beyond_the_quota_stay_idle() -> None:
    outcome = replay(workload((SPOT, 8, 10, 100)), find_policy("gfs_promised", StaticQuota(0.5)), to_s=3600)

    assert outcome.first_start_s[0] == 3600  # after the window there is no quota
    assert outcome.allocated_gpu_s[:, :1].sum() == 0


def test_a_quota_sees_the_most_demand_of_every_hour_running_or_waiting() -> None:
    seen: dict[float, tuple[list[float], float]] = {}

    class Watch:
        def quota(self, pool: str, evidence: Evidence) -> Quota:
            seen[evidence.now_s] = evidence.hourly_demand[:, 0].tolist(), float(evidence.demand_now[0])
            return Quota(pool, {1.0: 0.0})

    jobs = workload((SPOT, 8, 0, 9), (HIGH, 8, 10, 3000), (HIGH, 4, 20, 3000), (HIGH, 2, 7200, 10))
    replay(jobs, find_policy("gfs_published", Watch()), to_s=3 * 3600)

    assert seen[3600] == ([12.0], 4.0)
    assert seen[9000] == ([12.0, 4.0], 2.0)


def test_a_quota_sees_on_how_many_nodes_high_priority_jobs_sat_and_guesses_where_nobody_looked() -> None:
    seen: dict[float, tuple[list[float], float, int]] = {}

    class Watch:
        def quota(self, pool: str, evidence: Evidence) -> Quota:
            nodes = evidence.hourly_high_nodes.tolist()
            seen[evidence.now_s] = nodes, evidence.high_nodes_now, evidence.num_nodes
            return Quota(pool, {1.0: 0.0})

    jobs = workload(
        (HIGH, 4, 0, 3000),
        (HIGH, 8, 60, 9000),
        (SPOT, 8, 7200, 9),
        (HIGH, 1, 7300, 900),
        nodes=(8, 8, 8),
        workers=[2, 1, 1, 1],
    )
    replay(jobs, find_policy("gfs_published", Watch()), to_s=4 * 3600)

    assert seen[7200] == ([2.0, 1.0], 1.0, 3)  # nobody looked: 16 and 8 GPUs fill so many nodes of eight
    assert seen[7500][1] == 2.0
    assert seen[3 * 3600][0] == [2.0, 1.0, 2.0]


def test_jobs_larger_than_their_pool_are_counted_and_left_out() -> None:
    jobs = workload((HIGH, 16, 0, 10), (HIGH, 8, 0, 10), (SPOT, 0.5, 0, 10), nodes=(8,), workers=[1, 2, 17])
    outcome = replay(jobs, find_policy("fifo"))

    assert outcome.fits.tolist() == [False, False, False]
    assert outcome.metrics().num_too_large == 3


@pytest.mark.parametrize("name", sorted(POLICIES))
def test_every_job_that_fits_is_done_and_no_gpu_second_is_unaccounted(name: str) -> None:
    jobs = drawn(3)
    outcome = replay(jobs, find_policy(name, StaticQuota(0.5)))
    asked = (jobs.job_gpus * jobs.job_workers * jobs.job_duration_s)[outcome.fits].sum()
    spent = outcome.allocated_gpu_s.sum() - outcome.lost_gpu_s.sum()

    assert np.isfinite(outcome.end_s[outcome.fits]).all()
    assert spent >= asked * (1 - 1e-9)
    if name.startswith("fifo"):
        assert spent == pytest.approx(asked)
        assert outcome.queued_s == pytest.approx(outcome.end_s - jobs.job_submit_s - jobs.job_duration_s)
    assert outcome.wasted_gpu_s.sum() == pytest.approx(outcome.lost_gpu_s.sum())
    assert name in LEASED or outcome.num_broken.sum() == outcome.num_evictions.sum()
    assert (outcome.num_evictions[jobs.job_kind == Kind.HIGH] == 0).all()


@given(st.integers(0, 1000), st.sampled_from(sorted(set(POLICIES) - LEASED)))
@settings(max_examples=15, deadline=None)
def test_high_priority_jobs_lose_nothing_but_the_wait_and_the_restart_of_their_victims(seed: int, name: str) -> None:
    jobs = drawn(seed, num_jobs=120)
    outcome = replay(jobs, find_policy(name, StaticQuota(0.5)))
    high = outcome.fits & (jobs.job_kind == Kind.HIGH)
    beyond_s = (outcome.end_s - jobs.job_submit_s - jobs.job_duration_s - outcome.queued_s)[high]

    assert ((np.abs(beyond_s) < 1e-6) | (np.abs(beyond_s - 40) < 1e-6) | (np.abs(beyond_s - 60) < 1e-6)).all()


def test_the_same_workload_gives_the_same_outcome() -> None:
    first, second = (replay(drawn(5), find_policy("gfs", StaticQuota(0.3))) for _ in range(2))

    assert first.end_s.tobytes() == second.end_s.tobytes()
    assert first.metrics() == second.metrics()


@pytest.mark.parametrize("name", ["fifo", "kube", "slurm"])
def test_a_scheduler_that_takes_over_from_itself_changes_nothing(name: str) -> None:
    scheduler, jobs = RuleBasedScheduler(name, POLICIES[name]._replace(uses_quota=False)), drawn(5)
    begin_s = float(np.median(jobs.job_submit_s) // 3600 * 3600)

    alone = replay(jobs, scheduler, begin_s)
    taken = replay(jobs, scheduler, begin_s, before=scheduler.rules)

    assert alone.num_evictions.sum() > 0 or name == "fifo"
    assert alone.end_s.tobytes() == taken.end_s.tobytes()
    assert alone.metrics() == taken.metrics()


def test_who_waits_when_a_scheduler_takes_over_stands_in_its_order() -> None:
    jobs = workload((HIGH, 8, 0, 4000), (SPOT, 2, 10, 500), (HIGH, 1, 20, 500), (HIGH, 8, 30, 500))

    by_arrival = replay(jobs, find_policy("fifo_strict"), 3600, 7200)
    by_size = replay(jobs, find_policy("gfs_published", StaticQuota(1.0)), 3600, 7200, before=POLICIES["fifo_strict"])

    assert by_arrival.first_start_s.tolist() == [0, 4000, 4000, 4500]
    assert by_size.first_start_s.tolist() == [0, 4500, 4500, 4000]


@pytest.mark.parametrize("name", ["fifo", "gfs", "chronus"])
def test_schedulers_that_go_on_from_one_state_do_what_each_does_alone(name: str) -> None:
    jobs, scheduler = drawn(5), find_policy(name, StaticQuota(0.3))
    begin_s = float(np.median(jobs.job_submit_s) // 3600 * 3600)
    begun = ReplayPrefix(jobs, begin_s, before=POLICIES["fifo"])
    begun.replay(find_policy("kube", StaticQuota(0.1)))

    alone = replay(jobs, scheduler, begin_s, before=POLICIES["fifo"])
    after_another = begun.replay(scheduler)

    assert alone.end_s.tobytes() == after_another.end_s.tobytes()
    assert alone.metrics() == after_another.metrics()


def test_metrics_are_about_their_window_and_pool() -> None:
    jobs = workload((HIGH, 8, 0, 5400), (SPOT, 4, 7200, 1800), nodes=(8,))
    outcome = replay(jobs, find_policy("fifo"), to_s=4 * 3600)

    assert outcome.metrics().allocation_rate == pytest.approx((8 * 5400 + 4 * 1800) / (8 * 4 * 3600))
    assert outcome.metrics(to_s=3600).allocation_rate == 1
    assert outcome.metrics(from_s=7200, to_s=10_800, pool="a100").num_jobs == 1
    assert outcome.metrics(from_s=7200, to_s=10_800).spot_jct_s.mean == 1800


def test_the_three_eviction_rates_differ_and_are_named_apart() -> None:
    jobs = workload((SPOT, 8, 0, 7200), (HIGH, 8, 4000, 1000), (SPOT, 8, 20_000, 100))
    metrics = replay(jobs, RuleBasedScheduler("mine", PREEMPTS)).metrics()

    assert metrics.num_evictions == 1
    assert metrics.eviction_rate == pytest.approx(1 / (1 + 4))  # kept: an hour, an hour and the rest, the last job
    assert metrics.evictions_per_start == pytest.approx(1 / 3)
    assert metrics.evictions_per_job == pytest.approx(1 / 2)


def test_useful_time_leaves_out_what_was_thrown_away() -> None:
    jobs = workload((SPOT, 8, 0, 7200), (HIGH, 8, 4000, 1000))
    outcome = replay(jobs, RuleBasedScheduler("mine", PREEMPTS), to_s=3 * 3600)

    assert outcome.useful_gpu_s.sum() == 8 * (3600 + 1000 + 3600)  # neither the lost 400 s nor two restarts of 40 s
    assert outcome.useful_gpu_s[0, 0].tolist() == [0, 0, 8 * 3600]


@pytest.mark.parametrize("name", list(POLICIES))
def test_in_the_end_all_work_was_useful_once_under_every_scheduler(name: str) -> None:
    """Evictions, leases, notices and restarts change how long it takes, never how much work there is."""
    jobs = drawn(7)
    outcome = replay(jobs, find_policy(name, StaticQuota(0.3)))
    done = outcome.fits & np.isfinite(outcome.end_s)

    work = (jobs.job_duration_s * jobs.job_gpus * jobs.job_workers)[done].sum()
    assert outcome.useful_gpu_s.sum() == pytest.approx(work)
    assert outcome.useful_gpu_s.sum() <= outcome.allocated_gpu_s.sum() + 1e-6


def test_a_promise_counts_once_and_an_eviction_after_its_hour_breaks_nothing() -> None:
    late, early = (
        replay(
            workload((SPOT, 8, 0, 36_000), (HIGH, 8, when_s, 100)),
            find_policy("gfs_promised", StaticQuota(1.0)),
            to_s=12 * 3600,
        ).metrics()
        for when_s in (9000, 1800)
    )

    assert (late.num_evictions, late.promises_kept) == (1, 1.0)
    assert early.num_evictions == 1
    assert early.promises_kept == pytest.approx(1 / 2)  # broken, then kept by its second run


def test_a_job_that_ends_within_its_promise_keeps_it() -> None:
    outcome = replay(workload((SPOT, 8, 0, 600)), find_policy("gfs_promised", StaticQuota(1.0)))

    assert (outcome.num_promises_kept.sum(), outcome.num_promises_broken.sum()) == (1, 0)
    assert outcome.metrics().promised_share == 1.0


def test_days_are_shares_of_what_all_nodes_have() -> None:
    jobs = workload((HIGH, 8, 0, 43_200), (HIGH, 4, 86_400, 86_400), (HIGH, 8, 3 * 86_400, 60))
    outcome = replay(jobs, find_policy("fifo"), from_s=0.0, to_s=2 * 86_400.0)

    assert outcome.daily().tolist() == [0.5, 0.5]
    assert outcome.daily("wasted_gpu_s").tolist() == [0, 0]


def test_broken_promises_have_an_interval_that_days_make_wide() -> None:
    jobs = [(SPOT, 1.0, 1000.0 * i, 500.0) for i in range(86 * 6)] + [(HIGH, 8.0, 6 * 86_400.0, 1.0)]
    outcome = replay(workload(*jobs), find_policy("gfs"))
    even, uneven = np.zeros_like(outcome.num_promises_broken), np.zeros_like(outcome.num_promises_broken)
    even[0, ::24, Grade.GUARANTEED] = 8
    uneven[0, 0, Grade.GUARANTEED] = 8 * len(even[0, ::24])
    few, many = (replace(outcome, num_promises_broken=table).broken() for table in (even, uneven))

    assert outcome.broken() == ShareEstimate(0.0, 0.0, 0.0)
    assert few.mean == pytest.approx(many.mean)
    assert few.low <= few.mean <= few.high
    assert many.high - many.mean > 3 * (few.high - few.mean)


@pytest.mark.parametrize(("from_s", "to_s"), [(-1.0, 10.0), (10.0, 10.0)])
def test_a_window_that_is_none_is_refused(from_s: float, to_s: float) -> None:
    with pytest.raises(BadInput, match="the window runs from"):
        replay(workload((HIGH, 1, 0, 1)), find_policy("fifo"), from_s, to_s)


def test_time_counts_from_zero() -> None:
    with pytest.raises(BadInput, match="the first job comes at -5 s"):
        replay(workload((HIGH, 1, -5, 1)), find_policy("fifo"))
