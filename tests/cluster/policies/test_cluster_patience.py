"""A high-priority job waits for some hours rather than stop a far wider gang; never longer, and never for less."""

from __future__ import annotations

import pytest

from cluster.simulate.cluster_traces import HIGH, SPOT, workload
from takeup.cluster.contract import StaticQuota
from takeup.cluster.model import Decision, Evict, Grade, Hold, Job, Kind, Node, Run, Start, State, Waiting
from takeup.cluster.policies import POLICIES, find_policy
from takeup.cluster.policies.rule_based import RuleBasedScheduler
from takeup.cluster.simulate import replay

NOW_S, HOUR_S = 100_000.0, 3600.0
PATIENCE_S, MANY = POLICIES["gfs"].patience_s, int(POLICIES["gfs"].patience_gpus)


def decided(gpus: int, gang_workers: int, waited_s: float, is_exact: bool = False) -> list[Decision]:
    """A job of so many GPUs comes to nodes of eight that a spot gang fills, one worker on each."""
    nodes = tuple(Node(f"n{number}", "a100", 8) for number in range(gang_workers))
    gang = Job("gang", Kind.SPOT, "org", "a100", 8.0, gang_workers)
    run = Run(gang, tuple(node.name for node in nodes), 0.0, Grade.OPPORTUNISTIC, NOW_S - 60)
    job = Job("job", Kind.HIGH, "org", "a100", float(gpus))
    state = State(NOW_S, nodes, (run,), (Waiting(job, NOW_S - waited_s),))
    return list(RuleBasedScheduler("gfs", POLICIES["gfs"], StaticQuota(0.0), is_exact).decide(state))


def starts(decisions: list[Decision]) -> bool:
    return any(isinstance(it, Start) and it.job_id == "job" for it in decisions)


@pytest.mark.parametrize("is_exact", [False, True])
def test_a_job_waits_before_it_stops_a_far_wider_gang_and_says_so(is_exact: bool) -> None:
    decisions = decided(8, MANY // 8 + 2, waited_s=0.0, is_exact=is_exact)
    (hold,) = (it for it in decisions if isinstance(it, Hold))

    assert not starts(decisions)
    assert not any(isinstance(it, Evict) for it in decisions)
    assert hold.job_id == "job"
    assert "for 4 h it evicts no job" in hold.reason


def test_it_does_not_wait_for_longer_than_its_patience() -> None:
    assert not starts(decided(8, MANY // 8 + 2, waited_s=PATIENCE_S - 1))
    assert starts(decided(8, MANY // 8 + 2, waited_s=PATIENCE_S))


def test_what_leaves_no_more_idle_than_allowed_is_stopped_at_once() -> None:
    assert starts(decided(8, MANY // 8 + 1, waited_s=0.0))
    assert starts(decided(1, MANY // 8, waited_s=0.0))


def test_in_a_replay_the_gang_goes_on_until_patience_is_over() -> None:
    num_nodes = MANY // 8 + 2
    gang, job = (SPOT, 8.0, 0.0, 24 * HOUR_S), (HIGH, 8.0, HOUR_S, HOUR_S)
    later = (HIGH, 8.0, HOUR_S + PATIENCE_S, HOUR_S)  # something must happen for a replay to look again
    jobs = workload(gang, job, later, nodes=(8,) * num_nodes, workers=(num_nodes, 1, 1))
    metrics = replay(jobs, find_policy("gfs", StaticQuota(0.0))).metrics()

    assert metrics.high_jqt_s.mean == pytest.approx(PATIENCE_S / 2)
    assert metrics.num_evictions == 1


def test_if_room_comes_first_nobody_is_stopped() -> None:
    num_nodes = MANY // 8 + 2
    short, gang, job = (HIGH, 8.0, 0.0, 2 * HOUR_S), (SPOT, 8.0, 1.0, 24 * HOUR_S), (HIGH, 8.0, HOUR_S, HOUR_S)
    jobs = workload(short, gang, job, nodes=(8,) * (num_nodes + 1), workers=(1, num_nodes, 1))
    metrics = replay(jobs, find_policy("gfs", StaticQuota(0.0))).metrics()

    assert metrics.high_jqt_s.mean == pytest.approx(HOUR_S / 2)
    assert metrics.num_evictions == 0


def test_who_is_patient_takes_room_that_was_made_for_others() -> None:
    """A gang on five nodes is stopped for one on four, and the job that would not stop it gets what is left."""
    nodes = tuple(Node(f"n{number}", "a100", 8) for number in range(5))
    names = tuple(node.name for node in nodes)
    gang = Job("gang", Kind.SPOT, "org", "a100", 8.0, 5)
    first, wide = (
        Job("first", Kind.HIGH, "org", "a100", 8.0, 1, 1.0),
        Job("wide", Kind.HIGH, "org", "a100", 8.0, 4, 2.0),
    )
    waiting = Waiting(first, NOW_S - 1), Waiting(wide, NOW_S)
    state = State(NOW_S, nodes, (Run(gang, names, 0.0, Grade.OPPORTUNISTIC, NOW_S - 60),), waiting)
    decisions = RuleBasedScheduler("gfs", POLICIES["gfs"], StaticQuota(0.0)).decide(state)

    assert {it.job_id for it in decisions if isinstance(it, Start)} == {"first", "wide"}


def test_the_solver_does_not_stop_a_wide_gang_where_narrow_jobs_were_found() -> None:
    """Worker by worker two jobs of a node each are cheapest; together they cost more than a gang on five nodes."""
    nodes = tuple(Node(f"n{number}", "a100", 8) for number in range(7))
    names = tuple(node.name for node in nodes)
    runs = tuple(
        Run(Job(name, Kind.SPOT, "org", "a100", 8.0, len(on)), on, 0.0, Grade.OPPORTUNISTIC, NOW_S - lost_s)
        for name, on, lost_s in (("one", names[:1], 100.0), ("two", names[1:2], 200.0), ("wide", names[2:], 50.0))
    )
    high = Job("high", Kind.HIGH, "org", "a100", 8.0, 2)
    state = State(NOW_S, nodes, runs, (Waiting(high, NOW_S),))
    victims = {}
    for patience_s in (PATIENCE_S, 0.0):
        rules = POLICIES["gfs"]._replace(patience_s=patience_s)
        decisions = RuleBasedScheduler("gfs", rules, StaticQuota(0.0), is_exact=True).decide(state)
        victims[patience_s] = sorted(it.job_id for it in decisions if isinstance(it, Evict))

    assert victims == {PATIENCE_S: ["one", "two"], 0.0: ["wide"]}
