"""For a gang a live scheduler evicts whom a solver finds cheapest, and keeps the fast plan where it finds nothing."""

from __future__ import annotations

from collections import Counter
from itertools import combinations
from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cluster.scheduling.cluster_states import draw_state
from takeup.cluster.contract import StaticQuota
from takeup.cluster.model import Decision, Evict, Grade, Hold, Job, Kind, Node, Run, Start, State, Waiting
from takeup.cluster.policies import POLICIES, find_policy
from takeup.cluster.policies.rule_based import RuleBasedScheduler
from takeup.cluster.scheduling.gangs import best_victims, corrected_pass, prices_gpu_s, state_after

GFS = POLICIES["gfs"]._replace(wait_price=inf, moves=False)  # evicts at once
GANG = Job("gang", Kind.HIGH, "org", "a100", 4.0, 3, 1e6)
NODES = tuple(Node(f"n{i}", "a100", 8) for i in range(3))
NOW_S = 50_000.0


def spot(name: str, *nodes: str, gpus: float = 8.0, lost_s: float = 100.0) -> Run:
    job = Job(name, Kind.SPOT, "org", "a100", gpus, len(nodes))
    return Run(job, nodes, NOW_S - 9000, Grade.OPPORTUNISTIC, NOW_S - lost_s)


def decided(state: State, is_exact: bool) -> list[Decision]:
    return list(RuleBasedScheduler("gfs", GFS, StaticQuota(0.3), is_exact).decide(state))


def victims(decisions: list[Decision]) -> list[str]:
    return sorted(it.job_id for it in decisions if isinstance(it, Evict))


def crowded(seed: int) -> State:
    state = draw_state(seed, num_nodes=4, num_jobs=12)
    return State(state.now_s, state.nodes, state.runs, (Waiting(GANG, state.now_s),))


def price_of(state: State, names: list[str]) -> float:
    runs = [run for run in state.runs if run.job.kind == Kind.SPOT]
    prices = dict(zip((run.job.id for run in runs), prices_gpu_s(runs, state.now_s, GFS), strict=True))
    return float(sum(prices[name] for name in names))


def cheapest(state: State) -> float:
    """Brute force over all sets of spot jobs."""
    names = [run.job.id for run in state.runs if run.job.kind == Kind.SPOT]
    sets = (list(chosen) for size in range(len(names) + 1) for chosen in combinations(names, size))
    return min((price_of(state, chosen) for chosen in sets if has_room(state, chosen)), default=inf)


def has_room(state: State, leaving: list[str]) -> bool:
    idle = Counter({node.name: node.num_gpus for node in state.nodes if node.healthy})
    for run in state.runs:
        if run.job.id not in leaving:
            idle.subtract({name: count * int(run.job.gpus_per_worker) for name, count in Counter(run.nodes).items()})
    places = sum(max(0, idle[node.name]) // 4 for node in state.nodes if node.healthy)
    return places >= GANG.num_workers


@pytest.mark.parametrize("seed", range(20))
def test_the_victims_of_a_gang_cost_what_brute_force_finds(seed: int) -> None:
    state = crowded(seed)
    plan = corrected_pass(state, decided(state, is_exact=False), GFS, budget_s=inf)
    fast = decided(state, is_exact=False)
    chosen = victims(list(plan.decisions)) if plan else victims(fast)

    if any(isinstance(it, Start) and it.job_id == "gang" for it in fast):
        assert price_of(state, chosen) == pytest.approx(cheapest(state), rel=1e-6)
    else:
        assert cheapest(state) == inf


def test_the_fast_plan_is_sometimes_dearer_and_never_cheaper() -> None:
    gaps = []
    for seed in range(80):
        state = crowded(seed)
        fast, best = decided(state, is_exact=False), best_victims(state, GANG, GFS)
        if best is not None and best.victims:
            gaps.append(price_of(state, victims(fast)) / best.price_gpu_s - 1)

    assert min(gaps) > -1e-6
    assert 0 < sum(gap > 1e-6 for gap in gaps) < len(gaps) / 2


def test_a_victim_that_frees_two_nodes_is_worth_more_than_it_looks_node_by_node() -> None:
    """Node by node the single jobs are cheaper; together they cost more than the one that sits everywhere."""
    runs = (
        spot("wide", "n0", "n1", "n2", gpus=4.0, lost_s=1500.0),
        *(spot(f"single{i}", f"n{i}", gpus=4.0, lost_s=1600.0) for i in range(3)),
    )
    state = State(NOW_S, NODES, runs, (Waiting(GANG, NOW_S),))

    assert victims(decided(state, is_exact=False)) == ["single0", "single1", "single2"]
    assert victims(decided(state, is_exact=True)) == ["wide"]


def test_the_reason_says_how_good_the_plan_is() -> None:
    runs = (
        spot("wide", "n0", "n1", "n2", gpus=4.0, lost_s=1500.0),
        *(spot(f"single{i}", f"n{i}", gpus=4.0, lost_s=1600.0) for i in range(3)),
    )
    state = State(NOW_S, NODES, runs, (Waiting(GANG, NOW_S),))
    reasons = [it.reason for it in decided(state, is_exact=True) if isinstance(it, Evict)]

    assert reasons == ["gang needs the room; of all ways to make it, this is the cheapest"]


def test_without_time_the_fast_plan_stands() -> None:
    state = crowded(3)

    assert corrected_pass(state, decided(state, is_exact=False), GFS, budget_s=0.0) is None


def test_those_behind_the_gang_are_decided_about_what_it_leaves() -> None:
    """The better plan spares jobs that the fast one evicted; a later job must not sit where they still are."""
    runs = (
        spot("wide", "n0", "n1", "n2", gpus=4.0, lost_s=1500.0),
        *(spot(f"single{i}", f"n{i}", gpus=4.0, lost_s=1600.0) for i in range(3)),
    )
    late = Job("late", Kind.HIGH, "org", "a100", 4.0, 1, 2e6)
    decisions = decided(State(NOW_S, NODES, runs, (Waiting(GANG, NOW_S), Waiting(late, NOW_S))), is_exact=True)
    final = state_after(State(NOW_S, NODES, runs, (Waiting(GANG, NOW_S), Waiting(late, NOW_S))), decisions)
    held = Counter(name for run in final.runs for name in run.nodes)

    assert {it.job_id for it in decisions if isinstance(it, Start)} >= {"gang", "late"}
    assert len(victims(decisions)) == 2
    assert max(held.values()) <= 2


@given(st.integers(0, 10_000))
@settings(max_examples=30, deadline=None)
def test_whatever_the_solver_says_gangs_are_whole_and_nodes_are_not_overfilled(seed: int) -> None:
    state = draw_state(seed)
    decisions = decided(state, is_exact=True)
    final = state_after(state, decisions)
    held: Counter[str] = Counter()
    for run in final.runs:
        assert len(run.nodes) == run.job.num_workers
        held.update({name: run.job.gpus_per_worker * count for name, count in Counter(run.nodes).items()})
    answered = {it.job_id for it in decisions if isinstance(it, Start | Hold)}

    assert all(held[node.name] <= node.num_gpus for node in state.nodes)
    assert {wait.job.id for wait in state.waiting} <= answered


def test_gpus_that_are_kept_for_another_job_are_not_given_to_the_gang() -> None:
    other = Job("other", Kind.HIGH, "org", "a100", 8.0, 1)
    runs = (spot("a", "n0"), spot("b", "n1"))
    waiting = (Waiting(other, NOW_S), Waiting(Job("gang", Kind.HIGH, "org", "a100", 8.0, 2), NOW_S))
    state = State(NOW_S, NODES, runs, waiting, nominations={"other": ("n2",)})
    plan = best_victims(state, waiting[1].job, GFS)

    assert plan is not None
    assert plan.nodes == ("n0", "n1")


def test_carried_out_decisions_give_the_next_state() -> None:
    victim = spot("s", "n0")
    state = State(NOW_S, NODES, (victim,), (Waiting(Job("h", Kind.HIGH, "org", "a100", 8.0), NOW_S),))
    final = state_after(state, [Evict("s", "h", 1.0, ""), Start("h", ("n0",), Grade.HIGH, "")])

    assert [(run.job.id, run.nodes) for run in final.runs] == [("h", ("n0",))]
    assert final.waiting == (Waiting(victim.job, NOW_S, 1),)


def test_a_live_scheduler_is_exact_unless_told_otherwise() -> None:
    assert find_policy("gfs").is_exact
    assert not find_policy("gfs", is_exact=False).is_exact
