"""Placement and victims by hand."""

from __future__ import annotations

import numpy as np
import pytest

from cluster.scheduling.cluster_states import to_state
from takeup.cluster.contract import StaticQuota
from takeup.cluster.model import Decision, Evict, Eviction, Grade, Job, Kind, Node, Run, Start, State, Waiting
from takeup.cluster.policies.rule_based import RuleBasedScheduler
from takeup.cluster.scheduling.layout import JobArrays, empty_fleet
from takeup.cluster.scheduling.placement import update_calmness
from takeup.cluster.scheduling.rules import (
    BEST_FIT,
    CHEAPEST,
    PACKED,
    SHELTERED,
    TRY_SMALLER,
    TWO_POINTERS,
    SchedulerRules,
)
from takeup.cluster.scheduling.snapshot import from_state
from takeup.errors import BadInput

NOW_S = 50_000.0
NODES = tuple(Node(f"n{i}", "a100", 8) for i in range(3))


def high(name: str, gpus: float, workers: int = 1) -> Job:
    return Job(name, Kind.HIGH, "org", "a100", gpus, workers)


def spot_run(name: str, nodes: tuple[str, ...], gpus: float, lost_s: float, grade: Grade = Grade.OPPORTUNISTIC) -> Run:
    job = Job(name, Kind.SPOT, "org", "a100", gpus, len(nodes))
    return Run(job, nodes, NOW_S - 9000, grade, NOW_S - lost_s)


def high_run(name: str, nodes: tuple[str, ...], gpus: float) -> Run:
    return Run(high(name, gpus, len(nodes)), nodes, NOW_S - 9000, Grade.HIGH, NOW_S - 9000)


def decide(rules: SchedulerRules, runs: list[Run], *waiting: Job, **more: object) -> list[Decision]:
    waits = tuple(Waiting(job, NOW_S) for job in waiting)
    state = State(NOW_S, NODES, tuple(runs), waits, **more)  # type: ignore[arg-type]
    return list(RuleBasedScheduler("mine", rules, StaticQuota(1.0)).decide(state))


def evicted(decisions: list[Decision]) -> list[str]:
    return [it.job_id for it in decisions if isinstance(it, Evict)]


def started(decisions: list[Decision]) -> dict[str, tuple[str, ...]]:
    return {it.job_id: it.nodes for it in decisions if isinstance(it, Start)}


def test_packing_prefers_the_fullest_node_then_company_of_the_same_kind() -> None:
    runs = [high_run("h", ("n0",), 4), spot_run("s", ("n1",), 4, 10), high_run("i", ("n2",), 2)]

    assert started(decide(SchedulerRules(score=PACKED), runs, high("new", 2))) == {"new": ("n0",)}


def test_a_spot_job_keeps_away_from_nodes_that_evict() -> None:
    job = Job("s", Kind.SPOT, "org", "a100", 2)
    evictions = (Eviction("x", NOW_S - 1000, ("n0", "n1")),) * 3

    assert started(decide(SchedulerRules(score=PACKED), [], job, evictions=evictions)) == {"s": ("n2",)}
    assert started(decide(SchedulerRules(score=PACKED), [], high("h", 2), evictions=evictions)) == {"h": ("n0",)}


def test_a_spot_job_hides_where_no_request_for_a_whole_node_comes() -> None:
    runs = [spot_run("s", ("n0",), 4, 10), high_run("h", ("n1",), 4), high_run("i", ("n2",), 2)]
    job = Job("new", Kind.SPOT, "org", "a100", 2)

    assert started(decide(SchedulerRules(score=BEST_FIT), runs, job)) == {"new": ("n0",)}
    assert started(decide(SchedulerRules(score=PACKED), runs, job)) == {"new": ("n0",)}
    assert started(decide(SchedulerRules(score=SHELTERED), runs, job)) == {"new": ("n1",)}


def test_a_hidden_spot_job_survives_a_request_for_a_whole_node() -> None:
    runs = [spot_run("s", ("n0",), 4, 10), high_run("h", ("n1",), 4), high_run("i", ("n2",), 8)]
    rules = SchedulerRules(score=SHELTERED, victims=CHEAPEST)
    places = started(decide(rules, runs, Job("new", Kind.SPOT, "org", "a100", 4)))
    hidden = spot_run("new", places["new"], 4, 10)

    assert places == {"new": ("n1",)}
    assert evicted(decide(rules, [*runs, hidden], high("whole", 8))) == ["s"]


def test_shelter_comes_before_best_fit() -> None:
    runs = [spot_run("s", ("n0",), 6, 10), high_run("h", ("n1",), 4), high_run("i", ("n2",), 5)]

    assert started(decide(SchedulerRules(score=SHELTERED), runs, high("new", 2))) == {"new": ("n2",)}


def test_calm_falls_with_evictions_as_printed() -> None:
    empty = np.zeros(0)
    fleet = empty_fleet([8, 8], JobArrays(*(empty.astype(np.int64),) * 2, empty, empty.astype(np.int64), *(empty,) * 3))
    update_calmness(fleet, np.array([0, 2]), np.array([0, 5]))

    assert fleet.nodes["calm"] == pytest.approx([9900, 10_000 * (1 - 0.01 * 2 ** (0.8 * 2 + 0.2 * 5))])


def test_workers_that_share_fill_the_fullest_gpu_first() -> None:
    runs = [
        Run(high("a", 0.5), ("n0",), NOW_S - 3, Grade.HIGH, NOW_S),
        Run(high("b", 0.25), ("n1",), NOW_S - 2, Grade.HIGH, NOW_S),
    ]

    assert started(decide(SchedulerRules(), runs, high("c", 0.5))) == {"c": ("n0",)}
    assert started(decide(SchedulerRules(), runs, high("d", 0.75))) == {"d": ("n1",)}


def test_the_cheapest_victims_are_found_on_any_node_where_the_printed_rule_looks_at_the_tightest() -> None:
    runs = [
        high_run("h", ("n0",), 6),
        spot_run("dear", ("n0",), 2, 3000),
        spot_run("cheap", ("n1",), 2, 10),
        spot_run("other", ("n1",), 6, 3000),
        spot_run("third", ("n2",), 8, 3000),
    ]
    printed = SchedulerRules(victims=TWO_POINTERS)

    assert evicted(decide(printed, runs, high("new", 2))) == ["dear"]
    assert evicted(decide(printed._replace(victims=CHEAPEST), runs, high("new", 2))) == ["cheap"]


def test_a_promise_that_was_kept_protects_no_longer() -> None:
    job = Job("long", Kind.SPOT, "org", "a100", 8, guarantee_h=1.0)
    runs = [
        Run(job, ("n0",), NOW_S - 3600, Grade.GUARANTEED, NOW_S - 10),
        spot_run("idle", ("n1",), 8, 3000),
        high_run("h", ("n2",), 8),
    ]
    fresh = [Run(job, ("n0",), NOW_S - 3599, Grade.GUARANTEED, NOW_S - 10), *runs[1:]]

    assert evicted(decide(SchedulerRules(victims=CHEAPEST), runs, high("new", 8))) == ["long"]
    assert evicted(decide(SchedulerRules(victims=CHEAPEST), fresh, high("new", 8))) == ["idle"]


def test_a_job_without_a_promise_goes_before_one_with_a_promise_whatever_it_loses() -> None:
    promised = Job("promised", Kind.SPOT, "org", "a100", 8, guarantee_h=4.0)
    runs = [
        Run(promised, ("n0",), NOW_S - 9000, Grade.GUARANTEED, NOW_S - 10),
        spot_run("idle", ("n1",), 8, 3000),
        high_run("h", ("n2",), 8),
    ]

    assert evicted(decide(SchedulerRules(victims=CHEAPEST), runs, high("new", 8))) == ["idle"]


def test_a_victim_is_paid_for_once_and_frees_all_its_nodes() -> None:
    runs = [
        spot_run("gang", ("n0", "n1"), 8, 1000),
        spot_run("single", ("n2",), 8, 900),
    ]

    # Node by node the single job is the cheapest first step; then the gang must go as well, and it is enough.
    assert evicted(decide(SchedulerRules(victims=CHEAPEST), runs, high("new", 8, 2))) == ["gang"]
    assert sorted(evicted(decide(SchedulerRules(victims=CHEAPEST), runs, high("all", 8, 3)))) == ["gang", "single"]


def test_nobody_is_evicted_for_a_gang_that_does_not_fit_anyway() -> None:
    runs = [high_run("h", ("n0",), 8), spot_run("s", ("n1",), 8, 10), spot_run("t", ("n2",), 8, 10)]
    decisions = decide(SchedulerRules(victims=CHEAPEST), runs, high("new", 8, 3))

    assert evicted(decisions) == []
    assert started(decisions) == {}


def test_smaller_jobs_pass_one_that_does_not_fit_only_if_the_rules_say_so() -> None:
    runs = [high_run("h", ("n0", "n1"), 8)]
    jobs = high("big", 8, 2), high("small", 1)

    assert started(decide(SchedulerRules(), runs, *jobs)) == {}
    assert started(decide(SchedulerRules(high_failure=TRY_SMALLER), runs, *jobs)) == {"small": ("n2",)}


def test_a_state_survives_the_way_through_arrays() -> None:
    runs = (spot_run("s", ("n0", "n1"), 2, 10), high_run("h", ("n2",), 8))
    waiting = (Waiting(high("w", 4), NOW_S - 5),)
    state = State(NOW_S, NODES, runs, waiting, nominations={"w": ("n0",)})
    again = to_state(from_state(state, "a100", SchedulerRules()), NOW_S)

    assert {run.job.id: run.nodes for run in again.runs} == {"s": ("n0", "n1"), "h": ("n2",)}
    assert {run.job.id: run.saved_s for run in again.runs} == {run.job.id: run.saved_s for run in runs}
    assert (again.nodes, again.waiting, again.nominations) == (NODES, waiting, state.nominations)


def test_a_run_on_an_unknown_node_is_named() -> None:
    with pytest.raises(BadInput, match="job s sits on 'gone'"):
        decide(SchedulerRules(), [spot_run("s", ("gone",), 2, 10)])
