"""Jobs that may use some nodes only: they start there, and nothing is evicted for them elsewhere."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from cluster.scheduling.cluster_states import draw_state
from takeup.cluster.contract import StaticQuota
from takeup.cluster.model import Evict, Grade, Job, Kind, Node, Run, Start, State, Waiting
from takeup.cluster.policies import POLICIES, find_policy


def limited(seed: int) -> State:
    """A random state in which half of the waiting jobs may use two or three nodes only."""
    state, chance = draw_state(seed, num_nodes=6, num_jobs=30), np.random.default_rng(seed)
    names = [node.name for node in state.nodes]

    def mask() -> frozenset[str] | None:
        return frozenset(chance.choice(names, 3).tolist()) if chance.random() < 0.5 else None

    waiting = tuple(replace(wait, job=replace(wait.job, only_nodes=mask())) for wait in state.waiting)
    return replace(state, waiting=waiting)


@pytest.mark.parametrize("name", POLICIES)
def test_a_job_starts_on_its_nodes_and_its_victims_leave_them(name: str) -> None:
    num_limited = 0
    for seed in range(12):
        state = limited(seed)
        masks = {wait.job.id: wait.job.only_nodes for wait in state.waiting}
        nodes_of = {run.job.id: set(run.nodes) for run in state.runs}
        for it in find_policy(name, StaticQuota(0.5)).decide(state):
            mask = masks.get(it.for_job if isinstance(it, Evict) else getattr(it, "job_id", ""))
            if isinstance(it, Start) and mask is not None:
                num_limited += 1
                assert set(it.nodes) <= mask
            if isinstance(it, Evict) and mask is not None and it.job_id in nodes_of:
                assert nodes_of[it.job_id] & mask
    assert num_limited > 0


def test_a_job_that_fails_for_its_nodes_keeps_no_other_job_from_starting() -> None:
    nodes = (Node("n0", "a", 8), Node("n1", "a", 8))
    full = Run(Job("r", Kind.HIGH, "o", "a", 8.0), ("n0",), 0.0, Grade.HIGH, 0.0)
    first = Job("first", Kind.HIGH, "o", "a", 8.0, submit_s=1.0, only_nodes=frozenset({"n0"}))
    second = Job("second", Kind.HIGH, "o", "a", 8.0, submit_s=2.0)
    state = State(10.0, nodes, (full,), (Waiting(first, 1.0), Waiting(second, 2.0)))

    started = [it.job_id for it in find_policy("gfs", StaticQuota(0.5)).decide(state) if isinstance(it, Start)]

    assert started == ["second"]


def test_the_best_victims_of_a_gang_are_on_nodes_that_it_may_use() -> None:
    nodes = tuple(Node(f"n{number}", "a", 8) for number in range(4))
    spots = [Job(f"s{number}", Kind.SPOT, "o", "a", 8.0) for number in range(4)]
    runs = tuple(
        Run(job, (node.name,), 0.0, Grade.OPPORTUNISTIC, 900.0 if node.name < "n2" else 0.0)
        for job, node in zip(spots, nodes, strict=True)
    )
    gang = Job("gang", Kind.HIGH, "o", "a", 8.0, 2, only_nodes=frozenset({"n2", "n3"}))
    state = State(1000.0, nodes, runs, (Waiting(gang, 0.0),))

    decisions = find_policy("gfs", StaticQuota(0.0)).decide(state)

    assert {it.job_id for it in decisions if isinstance(it, Evict)} == {"s2", "s3"}
    assert [set(it.nodes) for it in decisions if isinstance(it, Start)] == [{"n2", "n3"}]
