"""An eviction is carried out when waiting has cost as much as it destroys; and narrow spot jobs move for wide ones."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from cluster.simulate.cluster_traces import HIGH, SPOT, philly_like, workload
from takeup.cluster.contract import StaticQuota
from takeup.cluster.experiment import ClusterScenario
from takeup.cluster.experiment.replays import scheduler_of
from takeup.cluster.model import Decision, Evict, Grade, Hold, Job, Kind, Node, Run, Start, State, Waiting
from takeup.cluster.policies import POLICIES, find_policy
from takeup.cluster.policies.gfs import at_price
from takeup.cluster.policies.rule_based import RuleBasedScheduler
from takeup.cluster.scheduling.rules import SchedulerRules
from takeup.cluster.simulate import replay

NOW_S, HOUR_S = 100_000.0, 3600.0
PRICE, RESTART_S = POLICIES["gfs"].wait_price, 60.0


def decided(gpus: int, gang_workers: int, waited_s: float) -> list[Decision]:
    """A high-priority job waits for nodes of eight that a spot gang fills, one worker on each, saved a minute ago."""
    nodes = tuple(Node(f"n{number}", "a100", 8) for number in range(gang_workers))
    gang = Job("gang", Kind.SPOT, "org", "a100", 8.0, gang_workers)
    run = Run(gang, tuple(node.name for node in nodes), 0.0, Grade.OPPORTUNISTIC, NOW_S - 60)
    job = Job("job", Kind.HIGH, "org", "a100", float(gpus))
    state = State(NOW_S, nodes, (run,), (Waiting(job, NOW_S - waited_s),))
    return list(RuleBasedScheduler("gfs", POLICIES["gfs"], StaticQuota(0.0)).decide(state))


def starts(decisions: list[Decision]) -> bool:
    return any(isinstance(it, Start) and it.job_id == "job" for it in decisions)


def test_a_job_waits_until_its_wait_has_cost_as_much_as_the_eviction() -> None:
    """Two nodes: 16 GPUs lose 60 s and restart for 60 s; 8 stay idle, so that a second of waiting costs 80 - 8."""
    waits_s = 16 * (60.0 + RESTART_S) / (8 * PRICE - 8)
    decisions = decided(8, 2, waits_s - 0.1)
    (hold,) = (it for it in decisions if isinstance(it, Hold))

    assert not starts(decisions)
    assert not any(isinstance(it, Evict) for it in decisions)
    assert hold.job_id == "job"
    assert "at 10 GPU-hours for an hour of waiting no eviction pays yet" in hold.reason
    assert starts(decided(8, 2, waits_s + 0.1))


def test_a_gang_is_not_broken_for_a_job_that_uses_too_little_of_it() -> None:
    """One GPU is worth ten; 15 of 16 would stay idle, however long the job has waited."""
    assert not starts(decided(1, 2, waited_s=5 * HOUR_S))
    assert starts(decided(1, 1, waited_s=5 * HOUR_S))


def test_idle_gpus_that_a_waiting_spot_job_takes_do_not_count() -> None:
    nodes = (Node("n0", "a100", 8), Node("n1", "a100", 8))
    gang = Job("gang", Kind.SPOT, "org", "a100", 8.0, 2)
    small = Job("small", Kind.SPOT, "org", "a100", 8.0)
    job = Job("job", Kind.HIGH, "org", "a100", 1.0)
    run = Run(gang, ("n0", "n1"), 0.0, Grade.OPPORTUNISTIC, NOW_S - 60)
    state = State(NOW_S, nodes, (run,), (Waiting(job, NOW_S - HOUR_S), Waiting(small, NOW_S - 1)))
    decisions = RuleBasedScheduler("gfs", POLICIES["gfs"], StaticQuota(0.0)).decide(state)

    assert {it.job_id for it in decisions if isinstance(it, Start)} == {"job", "small"}


def test_without_an_end_of_the_gang_a_replay_looks_again_when_it_pays_and_evicts() -> None:
    """The gang lost nothing in its first hour, and then as much as the first job waits; the other one comes later."""
    waits_s = 16 * RESTART_S / (8 * PRICE - 8 - 16)
    gang, job, later = (SPOT, 8.0, 0.0, 24 * HOUR_S), (HIGH, 8.0, HOUR_S, HOUR_S), (HIGH, 8.0, 2 * HOUR_S, HOUR_S)
    jobs = workload(gang, job, later, nodes=(8,) * 2, workers=(2, 1, 1))
    metrics = replay(jobs, find_policy("gfs", StaticQuota(0.0))).metrics()

    assert metrics.num_evictions == 1
    assert metrics.high_jqt_s.mean == pytest.approx(waits_s / 2, abs=5.0)


def test_if_capacity_is_free_first_no_job_is_evicted() -> None:
    short, gang, job = (HIGH, 8.0, 0.0, HOUR_S + 1), (SPOT, 8.0, 1.0, 24 * HOUR_S), (HIGH, 8.0, HOUR_S, HOUR_S)
    jobs = workload(short, gang, job, nodes=(8,) * 3, workers=(1, 2, 1))
    metrics = replay(jobs, find_policy("gfs", StaticQuota(0.0))).metrics()

    assert metrics.high_jqt_s.mean == pytest.approx(0.5)
    assert metrics.num_evictions == 0


def test_a_job_that_does_not_evict_takes_capacity_that_was_freed_for_others() -> None:
    """A gang on five nodes is evicted for one on four, and the job that has not waited yet gets what is left."""
    nodes = tuple(Node(f"n{number}", "a100", 8) for number in range(5))
    names = tuple(node.name for node in nodes)
    gang = Job("gang", Kind.SPOT, "org", "a100", 8.0, 5)
    first, wide = (
        Job("first", Kind.HIGH, "org", "a100", 8.0, 1, 1.0),
        Job("wide", Kind.HIGH, "org", "a100", 8.0, 4, 2.0),
    )
    waiting = Waiting(first, NOW_S), Waiting(wide, NOW_S - 100)
    state = State(NOW_S, nodes, (Run(gang, names, 0.0, Grade.OPPORTUNISTIC, NOW_S - 60),), waiting)
    decisions = RuleBasedScheduler("gfs", POLICIES["gfs"], StaticQuota(0.0)).decide(state)

    assert {it.job_id for it in decisions if isinstance(it, Start)} == {"first", "wide"}


# Moves ----------------------------------------------------------------------------------------------------------------


def scattered(
    saved_s: float,
    grade: Grade = Grade.OPPORTUNISTIC,
    waited_s: float = HOUR_S,
    rules: SchedulerRules = POLICIES["gfs"],
) -> list[Decision]:
    """Three nodes of eight, of which small spot jobs hold five, four and four GPUs; a spot job asks for eight."""
    nodes = tuple(Node(f"n{number}", "a100", 8) for number in range(3))
    runs = tuple(
        Run(Job(f"small{node}{place}", Kind.SPOT, "org", "a100", 1.0), (f"n{node}",), NOW_S - 1000, grade, saved_s)
        for node, count in ((0, 5), (1, 4), (2, 4))
        for place in range(count)
    )
    wide = Job("job", Kind.SPOT, "org", "a100", 8.0)
    state = State(NOW_S, nodes, runs, (Waiting(wide, NOW_S - waited_s),))
    return list(RuleBasedScheduler("gfs", rules, StaticQuota(0.0)).decide(state))


def test_narrow_spot_jobs_move_where_a_wider_one_then_fits_and_all_run() -> None:
    """Eleven GPUs are idle; four jobs move off a node, and fit elsewhere."""
    decisions = scattered(saved_s=NOW_S - 10)
    evicted = {it.job_id for it in decisions if isinstance(it, Evict)}
    started = {it.job_id for it in decisions if isinstance(it, Start)}

    assert len(evicted) == 4
    assert started == evicted | {"job"}


def test_a_move_must_pay() -> None:
    """Moving four jobs of one GPU costs 4 x (700 + 40) = 2,960 GPU-seconds; eight GPUs for 300 s are 2,400."""
    assert not any(isinstance(it, Evict) for it in scattered(saved_s=NOW_S - 700))
    assert not any(isinstance(it, Evict) for it in scattered(saved_s=NOW_S - 10, waited_s=20.0))


def test_a_move_is_one_that_an_engine_carries_out() -> None:
    nodes = tuple(Node(f"n{number}", "a100", 8) for number in range(2))
    narrow, high = Job("narrow", Kind.SPOT, "o", "a100", 2.0), Job("high", Kind.HIGH, "o", "a100", 2.0)
    wide = Waiting(Job("wide", Kind.SPOT, "o", "a100", 4.0), NOW_S - 60)
    same = Waiting(Job("same", Kind.SPOT, "o", "a100", 2.0), NOW_S - 60)
    promised = Job("promised", Kind.SPOT, "o", "a100", 2.0)
    runs = (
        Run(narrow, ("n0",), 0.0, Grade.OPPORTUNISTIC, 0.0),
        Run(promised, ("n0",), NOW_S - 60, Grade.GUARANTEED, 0.0),
        Run(high, ("n1",), 0.0, Grade.HIGH, 0.0),
    )
    state = State(NOW_S, nodes, runs, (wide, same))
    later = replace(state, now_s=NOW_S + HOUR_S)

    assert state.may_move("narrow", "wide")
    assert not any(state.may_move(job, "wide") for job in ("promised", "high", "unknown"))
    assert not state.may_move("narrow", "same")
    assert later.may_move("promised", "wide")  # its hour is over


def test_no_job_moves_to_the_gpus_that_the_gang_takes() -> None:
    """Two jobs of four GPUs would leave two nodes to a gang, and all that is idle elsewhere are pairs of GPUs."""
    nodes = tuple(Node(f"n{number}", "a100", 8) for number in range(6))
    small = (
        Run(Job(f"s{n}", Kind.SPOT, "o", "a100", 4.0), (f"n{n}",), 0.0, Grade.OPPORTUNISTIC, NOW_S) for n in (0, 1)
    )
    high = (Run(Job(f"h{n}", Kind.HIGH, "o", "a100", 6.0), (f"n{n}",), 0.0, Grade.HIGH, 0.0) for n in range(2, 6))
    waiting = (Waiting(Job("gang", Kind.SPOT, "o", "a100", 8.0, 2), NOW_S - HOUR_S),)
    state = State(NOW_S, nodes, (*small, *high), waiting)
    decisions = RuleBasedScheduler("gfs", POLICIES["gfs"], StaticQuota(0.0)).decide(state)

    assert not any(isinstance(it, Evict) for it in decisions)


# Prices ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(4))
def test_at_a_price_of_zero_every_job_has_the_times_of_fifo(seed: int) -> None:
    jobs = philly_like(seed, num_jobs=200, num_nodes=6)
    fifo = replay(jobs, find_policy("fifo"))
    ours = replay(jobs, RuleBasedScheduler("gfs", at_price(POLICIES["gfs"], 0.0), StaticQuota(0.5)))

    assert np.array_equal(ours.end_s, fifo.end_s, equal_nan=True)
    assert ours.num_evictions.sum() == 0


def test_the_price_of_a_scenario_is_that_of_the_scheduler() -> None:
    scenario = ClusterScenario.model_validate({"verb": "run", "engine": "slurm", "wait_price": 3.0})

    assert scheduler_of(scenario, "gfs").rules.wait_price == 3.0
    assert scheduler_of(scenario, "kube").rules == POLICIES["kube"]


def test_a_job_with_a_promise_does_not_move() -> None:
    assert not any(isinstance(it, Evict) for it in scattered(NOW_S - 10, Grade.GUARANTEED))
