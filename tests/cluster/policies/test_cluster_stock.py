"""Stock schedulers at their defaults, worked by hand from their documentation."""

from __future__ import annotations

import pytest

from takeup.cluster.contract import StaticQuota
from takeup.cluster.model import Evict, Grade, Job, Kind, Node, Run, Start, State, Waiting
from takeup.cluster.policies import POLICIES, find_policy

NODES = (Node("n0", "a", 8), Node("n1", "a", 8))


def spot(name: str, gpus: float, node: str, start_s: float) -> Run:
    return Run(Job(name, Kind.SPOT, "o", "a", gpus), (node,), start_s, Grade.OPPORTUNISTIC, start_s)


def victims(name: str, gpus: float, *runs: Run) -> list[str]:
    """The jobs that a policy evicts for a high-priority job of so many GPUs, with nothing to be guaranteed."""
    state = State(1000.0, NODES, runs, (Waiting(Job("h", Kind.HIGH, "o", "a", gpus), 900.0),))
    return [it.job_id for it in find_policy(name, StaticQuota(0.0)).decide(state) if isinstance(it, Evict)]


# Two small jobs on n0, of which the second is the youngest of all; one large job on n1.
FULL = (spot("old", 4, "n0", 0.0), spot("young", 4, "n0", 500.0), spot("large", 8, "n1", 100.0))


@pytest.mark.parametrize(
    ("name", "gpus", "evicted"),
    [
        ("kube", 8.0, ["large"]),  # one victim on n1, two on n0
        ("kube", 4.0, ["young"]),  # one victim on either; it started later than the one on n1
        ("slurm", 4.0, ["young"]),  # the youngest first
        ("kueue", 8.0, ["large"]),  # young, then large until it fits; young is not needed and stays
        ("kai", 4.0, ["young"]),  # no minimal runtime by default
        ("high_first", 4.0, []),
        ("fifo", 4.0, []),
    ],
)
def test_victims_are_those_that_the_documentation_says(name: str, gpus: float, evicted: list[str]) -> None:
    assert sorted(victims(name, gpus, *FULL)) == evicted


@pytest.mark.parametrize("name", ["kube", "slurm", "kueue", "kai", "high_first"])
def test_stock_schedulers_let_spot_jobs_use_every_idle_gpu(name: str) -> None:
    state = State(1000.0, NODES, (), (Waiting(Job("s", Kind.SPOT, "o", "a", 8.0, 2), 900.0),))

    started = [it.job_id for it in find_policy(name, StaticQuota(0.0)).decide(state) if isinstance(it, Start)]

    assert started == ["s"]
    assert not POLICIES[name].uses_quota


@pytest.mark.parametrize("name", ["kube+quota", "slurm+quota"])
def test_a_quota_is_a_policy_of_another_name(name: str) -> None:
    state = State(1000.0, NODES, (), (Waiting(Job("s", Kind.SPOT, "o", "a", 8.0), 900.0),))

    assert not [it for it in find_policy(name, StaticQuota(0.0)).decide(state) if isinstance(it, Start)]


def test_only_strict_kueue_lets_no_job_pass_the_head_of_the_queue() -> None:
    wide, small = Job("wide", Kind.SPOT, "o", "a", 8.0, 3, 1.0), Job("small", Kind.SPOT, "o", "a", 1.0, submit_s=2.0)
    state = State(1000.0, NODES, (), (Waiting(wide, 900.0), Waiting(small, 950.0)))
    started = {
        name: [it.job_id for it in find_policy(name).decide(state) if isinstance(it, Start)]
        for name in ("kueue", "kueue_strict")
    }

    assert started == {"kueue": ["small"], "kueue_strict": []}
