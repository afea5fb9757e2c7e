"""The integer programme against brute force, and the fast way against the integer programme."""

from __future__ import annotations

from itertools import combinations

import pytest

from cluster.scheduling.cluster_states import draw_state
from support.gang_victims import GangPlan, best_victims, is_promised, price_gpu_s
from takeup.cluster.model import Evict, Grade, Job, Kind, Run, State, Waiting
from takeup.cluster.policies.rule_based import RuleBasedScheduler
from takeup.cluster.scheduling.rules import CHEAPEST, SchedulerRules

RULES = SchedulerRules(victims=CHEAPEST)
GANG = Job("gang", Kind.HIGH, "org", "a100", 4.0, 3, 1e6)


def crowded(seed: int) -> State:
    state = draw_state(seed, num_nodes=4, num_jobs=12)
    return State(state.now_s, state.nodes, state.runs, (Waiting(GANG, state.now_s),))


def is_room(state: State, leaving: set[str]) -> bool:
    count = 0
    for node in state.nodes:
        staying = [run for run in state.runs if run.job.id not in leaving]
        idle = node.num_gpus - sum(run.nodes.count(node.name) * run.job.gpus_per_worker for run in staying)
        count += int(max(0, idle) // 4) if node.healthy else 0
    return count >= GANG.num_workers


def cost(state: State, names: set[str]) -> tuple[int, float]:
    runs = [run for run in state.runs if run.job.id in names]
    return sum(is_promised(run, state.now_s) for run in runs), sum(price_gpu_s(run, state.now_s, RULES) for run in runs)


def brute_force(state: State) -> tuple[int, float] | None:
    spot = [run.job.id for run in state.runs if run.job.kind == Kind.SPOT]
    subsets = (set(chosen) for size in range(len(spot) + 1) for chosen in combinations(spot, size))
    return min((cost(state, names) for names in subsets if is_room(state, names)), default=None)


def greedy(state: State) -> set[str]:
    return {it.job_id for it in RuleBasedScheduler("mine", RULES).decide(state) if isinstance(it, Evict)}


@pytest.mark.parametrize("seed", range(12))
def test_the_programme_finds_what_brute_force_finds(seed: int) -> None:
    state = crowded(seed)
    plan, best = best_victims(state, GANG, RULES), brute_force(state)

    assert (plan is None) == (best is None)
    if plan is not None and best is not None:
        assert len(plan.nodes) == GANG.num_workers
        assert cost(state, set(plan.victims)) == pytest.approx(best)
        assert plan.bound_gpu_s == pytest.approx(plan.price_gpu_s, rel=1e-3, abs=1e-3)


def test_the_fast_way_costs_little_more_than_the_best() -> None:
    fast, best, num_cases = 0.0, 0.0, 0
    for seed in range(60):
        state = crowded(seed)
        plan = best_victims(state, GANG, RULES)
        if isinstance(plan, GangPlan) and plan.victims:
            broken, price = cost(state, greedy(state))
            best_broken, best_price = cost(state, set(plan.victims))
            assert (broken, price) >= (best_broken, best_price - 1e-6)
            if broken == best_broken:
                fast, best, num_cases = fast + price, best + best_price, num_cases + 1

    assert num_cases > 20
    assert fast <= 1.1 * best


def test_an_empty_pool_needs_no_victims() -> None:
    state = draw_state(0)
    plan = best_victims(State(0, state.nodes, (), ()), GANG, RULES)

    assert plan is not None
    assert plan.victims == ()


def test_a_gang_that_high_priority_jobs_keep_out_has_no_plan() -> None:
    state = draw_state(0)
    busy = tuple(
        Run(Job(node.name, Kind.HIGH, "org", "a100", 8.0), (node.name,), 0.0, Grade.HIGH, 0.0) for node in state.nodes
    )

    assert best_victims(State(0, state.nodes, busy, ()), GANG, RULES) is None
