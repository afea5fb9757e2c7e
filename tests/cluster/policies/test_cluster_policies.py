"""Schedulers by name, their memory, and that nobody is evicted in circles."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cluster.simulate.cluster_traces import HIGH, SPOT, drawn, workload
from takeup.cluster.contract import Evidence, StaticQuota
from takeup.cluster.model import (
    Decision,
    Evict,
    Eviction,
    Grade,
    Hold,
    Job,
    Kind,
    Node,
    Quota,
    Run,
    SetQuota,
    Start,
    State,
    Waiting,
)
from takeup.cluster.policies import POLICIES, find_policy
from takeup.cluster.policies.rule_based import PoolHistory, RuleBasedScheduler
from takeup.cluster.scheduling.rules import SchedulerRules
from takeup.cluster.scheduling.snapshot import PoolSnapshot, from_state
from takeup.cluster.simulate import replay
from takeup.errors import UnknownName

NODES = (Node("n0", "a100", 8), Node("n1", "a100", 8))


def job(name: str, kind: Kind, gpus: float, workers: int = 1, submit_s: float = 0.0) -> Job:
    return Job(name, kind, "red" if kind == Kind.HIGH else "blue", "a100", gpus, workers, submit_s)


def run(it: Job, *nodes: str, start_s: float = 0.0, grade: Grade = Grade.OPPORTUNISTIC) -> Run:
    return Run(it, nodes, start_s, Grade.HIGH if it.kind == Kind.HIGH else grade, start_s)


def only(kind: type, decisions: list[Decision]) -> list[str]:
    return [it.job_id for it in decisions if isinstance(it, kind)]  # type: ignore[union-attr]


def test_an_unknown_policy_is_named_with_the_nearest_that_exists() -> None:
    with pytest.raises(UnknownName, match="did you mean 'gfs'"):
        find_policy("gsf")


@pytest.mark.parametrize("name", sorted(POLICIES))
def test_every_policy_carries_its_name_and_rules_of_one_type(name: str) -> None:
    scheduler = find_policy(name)

    assert scheduler.name == name
    assert [type(value) for value in scheduler.rules] == [type(value) for value in SchedulerRules()]


def test_whole_numbers_in_rules_become_what_they_stand_for() -> None:
    rules = RuleBasedScheduler("mine", SchedulerRules(period_s=300, ageing_s=0)).rules

    assert isinstance(rules.period_s, float)
    assert rules == SchedulerRules(period_s=300.0)


def test_a_quota_is_asked_for_every_five_minutes_and_kept_in_between() -> None:
    asked: list[float] = []

    class Source:
        def quota(self, pool: str, evidence: Evidence) -> Quota:
            asked.append(evidence.now_s)
            return Quota(pool, {1.0: 4.0})

    scheduler = find_policy("gfs", Source())
    counts = [
        sum(isinstance(it, SetQuota) for it in scheduler.decide(State(now_s, NODES, (), ()))) for now_s in (0, 100, 300)
    ]

    assert asked == [0, 300]
    assert counts == [1, 0, 1]


def test_a_policy_without_a_quota_never_asks() -> None:
    class Source:
        def quota(self, pool: str, evidence: Evidence) -> Quota:
            raise AssertionError

    assert list(find_policy("fifo", Source()).decide(State(0, NODES, (), ()))) == []


def test_a_held_job_hears_of_the_quota() -> None:
    waiting = (Waiting(job("s", SPOT, 8), 0.0),)
    decisions = find_policy("gfs_published", StaticQuota(0.25)).decide(State(0, NODES, (), waiting))
    reasons = [it.reason for it in decisions if isinstance(it, Hold)]

    assert reasons == ["quota of 4 GPUs, 0 in use; no room for 1 x 8 GPUs, or others go first"]


def test_pools_do_not_mix() -> None:
    nodes = (Node("n0", "a100", 8), Node("m0", "a10", 1))
    waiting = (Waiting(job("h", HIGH, 8), 0.0), Waiting(Job("t", HIGH, "red", "a10", 1.0), 0.0))
    decisions = find_policy("gfs").decide(State(0, nodes, (), waiting))

    assert {it.job_id: it.nodes for it in decisions if isinstance(it, Start)} == {"h": ("n0",), "t": ("m0",)}


def seen(state: State) -> PoolSnapshot:
    return from_state(state, "a100", SchedulerRules())


def look(memory: PoolHistory, state: State) -> None:
    memory.look(state, seen(state))


def evidence_of(memory: PoolHistory, state: State) -> Evidence:
    return memory.evidence(state, seen(state), 1.0)


def test_the_memory_holds_the_most_demand_of_each_hour_and_counts_promises() -> None:
    memory = PoolHistory(0.0)
    kept, broken = (run(job(name, SPOT, 2), "n0", grade=Grade.GUARANTEED) for name in ("kept", "broken"))
    busy = run(job("h", HIGH, 8), "n1")
    look(memory, State(0, NODES, (busy, kept, broken), (Waiting(job("w", HIGH, 4), 0.0),)))
    look(memory, State(1800, NODES, (busy, kept, broken), ()))
    later = State(3700, NODES, (kept,), (), evictions=(Eviction("broken", 3000, ("n0",)),))
    look(memory, later)
    evidence = evidence_of(memory, later)

    assert evidence.organisations == ("red",)
    assert evidence.hourly_demand.tolist() == [[12.0]]
    assert (evidence.num_kept, evidence.num_broken) == (1, 1)
    assert (evidence.capacity_gpus, evidence.idle_gpus, evidence.guaranteed_gpus, evidence.idle_nodes) == (16, 14, 0, 1)
    assert evidence_of(memory, later).num_kept == 0


def test_a_promise_is_counted_once_and_not_after_its_hours() -> None:
    memory = PoolHistory(0.0)
    spot = run(job("s", SPOT, 2), "n0", grade=Grade.GUARANTEED)
    for now_s in (0, 3700, 7400):
        look(memory, State(now_s, NODES, (spot,), ()))
    look(memory, State(9000, NODES, (), (), evictions=(Eviction("s", 8000, ("n0",)),)))

    evidence = evidence_of(memory, State(9000, NODES, (), ()))

    assert (evidence.num_kept, evidence.num_broken) == (1, 0)


def test_a_clock_that_goes_backwards_teaches_nothing() -> None:
    memory = PoolHistory(0.0)
    look(memory, State(5000, NODES, (), ()))
    look(memory, State(100, NODES, (run(job("h", HIGH, 8), "n0"),), ()))

    assert evidence_of(memory, State(5000, NODES, (), ())).organisations == ()


def test_hours_before_the_first_look_are_part_of_the_history() -> None:
    asked: list[Evidence] = []

    class Source:
        def quota(self, pool: str, evidence: Evidence) -> Quota:
            asked.append(evidence)
            return Quota(pool, {1.0: 4.0})

    scheduler = find_policy("gfs", Source())
    scheduler.learn("a100", 10_000.0, [3.0, 5.0])
    now_s = 10_000.0 + 3 * 3600
    state = State(now_s, NODES, (run(job("h", HIGH, 8), "n1"),), (), {"a100": Quota("a100", {1.0: 4.0}, None, 1.7)})
    scheduler.decide(state)
    scheduler.decide(replace(state, now_s=now_s + 3600))

    assert asked[0].hourly_demand.sum(axis=1).tolist() == [3.0, 5.0, 8.0]
    assert asked[1].hourly_demand.sum(axis=1).tolist() == [3.0, 5.0, 8.0, 8.0]
    assert [it.coefficient for it in asked] == [1.7, 1.7]


def test_history_of_a_time_to_come_stops_nothing() -> None:
    scheduler = find_policy("gfs", StaticQuota(0.25))
    scheduler.learn("a100", 10_000.0, [3.0, 5.0])

    assert scheduler.decide(State(0, NODES, (), (Waiting(job("s", SPOT, 8), 0.0),)))


# No circles -----------------------------------------------------------------------------------------------------------


def test_gpus_freed_for_a_job_are_kept_for_it_while_its_victims_leave() -> None:
    """A slow eviction: the room must not go to others, and nobody is evicted a second time for the same job."""
    preemptor, late = job("late", HIGH, 8, submit_s=10), job("small", SPOT, 2, submit_s=11)
    victim = run(job("victim", SPOT, 8), "n0")
    other = run(job("other", HIGH, 8), "n1")
    first = State(1000, NODES, (victim, other), (Waiting(preemptor, 0.0),))
    scheduler = find_policy("gfs")
    plan = list(scheduler.decide(first))
    assert only(Evict, plan) == ["victim"]

    waiting = (Waiting(preemptor, 1000.0), Waiting(late, 1000.0))
    leaving = State(1005, NODES, (victim, other), waiting, nominations={"late": ("n0",)})
    empty = State(1010, NODES, (other,), (*waiting, Waiting(victim.job, 1010.0, 1)), nominations={"late": ("n0",)})

    assert only(Evict, list(scheduler.decide(leaving))) == []
    assert only(Start, list(scheduler.decide(leaving))) == []
    assert only(Start, list(scheduler.decide(empty))) == ["late"]
    assert only(Evict, list(scheduler.decide(empty))) == []


def test_a_job_that_waits_for_long_goes_first() -> None:
    ageing = SchedulerRules(high_order=1, high_failure=1, ageing_s=3600.0)
    old, big = job("old", HIGH, 1), job("big", HIGH, 8, submit_s=5)
    scheduler = RuleBasedScheduler("mine", ageing)
    fresh = State(3000, NODES[:1], (), (Waiting(old, 0.0), Waiting(big, 0.0)))
    aged = State(4000, NODES[:1], (), (Waiting(old, 0.0), Waiting(big, 3900.0)))

    assert only(Start, list(scheduler.decide(fresh))) == ["big"]
    assert only(Start, list(scheduler.decide(aged))) == ["old"]


@given(st.integers(0, 500))
@settings(max_examples=20, deadline=None)
def test_under_gfs_a_preemptor_starts_at_once_and_evicts_nobody_twice(seed: int) -> None:
    """Applied at once, evictions and start are one step: the same job can never evict for the second time."""
    state = _crowded(seed)
    decisions = list(find_policy("gfs", StaticQuota(0.3)).decide(state))
    pairs = [(it.job_id, it.for_job) for it in decisions if isinstance(it, Evict)]

    assert len(pairs) == len(set(pairs))
    assert {preemptor for _, preemptor in pairs} <= set(only(Start, decisions))


def _crowded(seed: int) -> State:
    chance = np.random.default_rng(seed)
    runs = tuple(
        run(job(f"s{n}{k}", SPOT, 2), f"n{n}", start_s=float(chance.integers(900))) for n in range(2) for k in range(4)
    )
    waiting = tuple(Waiting(job(f"h{i}", HIGH, float(chance.choice([1, 2, 4, 8]))), 1000.0) for i in range(4))
    return State(1000.0, NODES, runs, waiting)


def test_a_stream_of_high_priority_jobs_does_not_evict_one_job_for_ever() -> None:
    jobs = [(SPOT, 8.0, 0.0, 30000.0), (SPOT, 8.0, 1.0, 30000.0)]
    jobs += [(HIGH, 8.0, 1000.0 + 2500.0 * i, 200.0) for i in range(20)]
    outcome = replay(workload(*jobs, nodes=(8, 8)), find_policy("gfs", StaticQuota(0.0)))

    assert np.isfinite(outcome.end_s).all()
    assert outcome.num_evictions[:2].max() <= outcome.num_evictions[:2].sum() / 2 + 3
    assert outcome.queued_s[2:].max() <= 600.0


@pytest.mark.parametrize("seed", range(3))
def test_beyond_a_narrow_quota_idle_gpus_shorten_the_wait_of_spot_jobs(seed: int) -> None:
    jobs = drawn(seed, num_jobs=400, load_share=1.1)
    ours, printed = (replay(jobs, find_policy(name, StaticQuota(0.1))).metrics() for name in ("gfs", "gfs_published"))

    assert ours.spot_jqt_s.mean < printed.spot_jqt_s.mean
