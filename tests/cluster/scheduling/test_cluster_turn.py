"""The compiled pass against a plain one, and what must hold for every decision."""

from __future__ import annotations

from collections import Counter
from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cluster.scheduling.cluster_states import draw_state
from support.plain_scheduling_pass import PlainPass
from takeup.cluster.contract import StaticQuota
from takeup.cluster.model import Evict, Grade, Hold, Kind, Start, State
from takeup.cluster.policies import POLICIES
from takeup.cluster.policies.rule_based import RuleBasedScheduler
from takeup.cluster.scheduling.layout import BLOCK
from takeup.cluster.scheduling.rules import SchedulerRules

PLAIN = [name for name in POLICIES if not POLICIES[name].lease_s and not POLICIES[name].notice_s]
SHARE = 0.4


def decide(
    name: str, state: State, rules: SchedulerRules | None = None, share: float = SHARE
) -> list[tuple[str, str, tuple[str, ...] | str]]:
    scheduler = RuleBasedScheduler(
        name, rules or POLICIES[name]._replace(ageing_s=0.0, moves=False), StaticQuota(share)
    )
    events: list[tuple[str, str, tuple[str, ...] | str]] = []
    for decision in scheduler.decide(state):
        if isinstance(decision, Start):
            events.append(("start", decision.job_id, decision.nodes))
        elif isinstance(decision, Evict):
            events.append(("evict", decision.job_id, decision.for_job))
    return events


@pytest.mark.parametrize("name", PLAIN)
def test_the_pass_decides_as_the_plain_one(name: str) -> None:
    num_evictions = 0
    for seed in range(25):
        state = draw_state(seed)
        expected = PlainPass(state, POLICIES[name], SHARE * 8 * len(state.nodes)).decide()

        assert decide(name, state) == expected, f"seed {seed}"
        num_evictions += sum(what == "evict" for what, *_ in expected)
    assert num_evictions > 0 or POLICIES[name].victims == 0


@pytest.mark.parametrize("name", ["gfs", "gfs_published", "fgd_published", "kube"])
def test_the_pass_decides_as_the_plain_one_on_more_nodes_than_a_block_has(name: str) -> None:
    evicted_on = set[str]()
    for seed in range(3):
        state = draw_state(seed, num_nodes=BLOCK + 10, num_jobs=2 * BLOCK + 40, busy=0.9)
        expected = PlainPass(state, POLICIES[name], SHARE * 8 * len(state.nodes)).decide()

        assert decide(name, state) == expected, f"seed {seed}"
        nodes_of = {run.job.id: run.nodes for run in state.runs}
        evicted_on |= {node for what, job_id, _ in expected if what == "evict" for node in nodes_of[job_id]}
    assert {int(node[1:]) // BLOCK for node in evicted_on} == {0, 1}


@pytest.mark.parametrize("share", [0.05, 0.2, 0.5])
def test_the_pass_refuses_as_the_plain_one_when_the_quota_runs_out(share: float) -> None:
    rules = POLICIES["gfs_published"]._replace(ageing_s=0.0)
    num_started, num_refused = 0, 0
    for seed in range(40):
        state = draw_state(seed)
        expected = PlainPass(state, rules, share * 8 * len(state.nodes)).decide()
        started = {job_id for what, job_id, _ in expected if what == "start"}
        spot = [it.job for it in state.waiting if it.job.kind == Kind.SPOT]

        assert decide("gfs_published", state, rules, share) == expected, f"seed {seed}"
        num_started += sum(job.id in started for job in spot)
        num_refused += sum(job.id not in started for job in spot)
    assert num_refused > 40
    assert num_started > 0


@pytest.mark.parametrize("price", [0.1, 1.0, 10.0])
def test_the_pass_waits_as_long_as_the_plain_one(price: float) -> None:
    priced = POLICIES["gfs"]._replace(ageing_s=0.0, moves=False, wait_price=price)
    num_fewer = 0
    for seed in range(40):
        state = draw_state(seed)
        expected, at_once = (
            PlainPass(state, rules, SHARE * 8 * len(state.nodes)).decide()
            for rules in (priced, priced._replace(wait_price=inf))
        )

        assert decide("gfs", state, priced) == expected, f"seed {seed}"
        num_fewer += expected != at_once
    assert num_fewer > 0


@given(st.integers(0, 10_000), st.sampled_from(sorted(POLICIES)), st.booleans())
@settings(max_examples=60, deadline=None)
def test_no_node_is_overfilled_and_gangs_are_whole(seed: int, name: str, shared: bool) -> None:
    state = draw_state(seed, shared=shared)
    decisions = RuleBasedScheduler(name, POLICIES[name], StaticQuota(SHARE)).decide(state)
    jobs = {it.job.id: it.job for it in [*state.waiting]} | {run.job.id: run.job for run in state.runs}
    places = {run.job.id: run.nodes for run in state.runs}
    for decision in decisions:
        if isinstance(decision, Evict) and not decision.notice_s:
            del places[decision.job_id]
        elif isinstance(decision, Start):
            places[decision.job_id] = decision.nodes
    held: Counter[str] = Counter()
    for job_id, nodes in places.items():
        assert len(nodes) == jobs[job_id].num_workers
        for node in nodes:
            held[node] += int(1000 * jobs[job_id].gpus_per_worker)

    assert all(held[node.name] <= 1000 * node.num_gpus for node in state.nodes)


@given(st.integers(0, 10_000), st.sampled_from(sorted(POLICIES)))
@settings(max_examples=60, deadline=None)
def test_every_waiting_job_starts_or_is_told_why_not(seed: int, name: str) -> None:
    state = draw_state(seed)
    decisions = RuleBasedScheduler(name, POLICIES[name], StaticQuota(SHARE)).decide(state)
    answered = {decision.job_id for decision in decisions if isinstance(decision, Start | Hold)}

    assert {wait.job.id for wait in state.waiting} <= answered


@given(st.integers(0, 10_000), st.sampled_from(sorted(name for name in POLICIES if not POLICIES[name].lease_s)))
@settings(max_examples=60, deadline=None)
def test_only_spot_jobs_are_evicted_and_for_high_priority_jobs_unless_they_move(seed: int, name: str) -> None:
    state = draw_state(seed)
    kinds = {run.job.id: run.job.kind for run in state.runs} | {wait.job.id: wait.job.kind for wait in state.waiting}
    evictions = [
        it for it in RuleBasedScheduler(name, POLICIES[name], StaticQuota(SHARE)).decide(state) if isinstance(it, Evict)
    ]

    assert all(kinds[it.job_id] == Kind.SPOT for it in evictions)
    assert POLICIES[name].moves or all(kinds[it.for_job] == Kind.HIGH for it in evictions)


@given(st.integers(0, 10_000))
@settings(max_examples=60, deadline=None)
def test_promises_are_given_inside_the_quota_only(seed: int) -> None:
    state = draw_state(seed, busy=0.3)
    held = {run.job.id: run.job.num_gpus for run in state.runs if run.is_promised(state.now_s)}
    jobs = {wait.job.id: wait.job for wait in state.waiting} | {run.job.id: run.job for run in state.runs}
    promised = 0.0
    for it in RuleBasedScheduler("gfs", POLICIES["gfs"], StaticQuota(0.2)).decide(state):
        if isinstance(it, Evict):
            held.pop(it.job_id, None)
        elif isinstance(it, Start) and it.grade == Grade.GUARANTEED:
            promised += jobs[it.job_id].num_gpus

    assert promised == 0 or sum(held.values()) + promised <= 0.2 * 8 * len(state.nodes)


@given(st.integers(0, 10_000), st.randoms(use_true_random=False))
@settings(max_examples=30, deadline=None)
def test_the_order_in_which_a_state_lists_things_does_not_matter(seed: int, shuffler: object) -> None:
    state = draw_state(seed)
    runs, waiting = list(state.runs), list(state.waiting)
    for things in (runs, waiting):
        shuffler.shuffle(things)  # type: ignore[attr-defined]
    shuffled = State(state.now_s, state.nodes, tuple(runs), tuple(waiting))

    assert decide("gfs", shuffled) == decide("gfs", state)
