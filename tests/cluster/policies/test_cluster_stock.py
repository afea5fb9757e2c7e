"""Stock schedulers at their defaults, worked by hand from their documentation."""

from __future__ import annotations

import pytest

from cluster.simulate.cluster_traces import HIGH, SPOT, workload
from takeup.cluster.contract import StaticQuota
from takeup.cluster.model import Evict, Grade, Job, Kind, Node, Run, Start, State, Waiting
from takeup.cluster.policies import POLICIES, find_policy
from takeup.cluster.simulate import replay

HOUR_S = 3600.0
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


# EASY backfill, Kueue's cohorts, and the bound, on jobs whose times are known -----------------------------------------


def starts_h(name: str, *jobs: tuple[Kind, float, float, float], num_nodes: int = 1) -> list[float]:
    """When each job of (kind, GPUs, submitted at, hours) first started, in hours."""
    times = [(kind, gpus, HOUR_S * submit_h, HOUR_S * hours) for kind, gpus, submit_h, hours in jobs]
    outcome = replay(workload(*times, nodes=(8,) * num_nodes), find_policy(name))
    return [float(start_s) / HOUR_S for start_s in outcome.first_start_s]


def test_easy_backfill_lets_a_job_pass_only_if_it_ends_before_the_first_can_start() -> None:
    """Four GPUs are busy until 10; a job of eight waits for them; of two jobs of four only the short one may pass."""
    jobs = ((HIGH, 4, 0.0, 10.0), (HIGH, 8, 0.1, 1.0), (HIGH, 4, 0.2, 12.0), (HIGH, 4, 0.3, 2.0))

    assert starts_h("easy", *jobs) == pytest.approx([0.0, 10.0, 11.0, 0.3])
    assert starts_h("fifo", *jobs) == pytest.approx([0.0, 12.2, 0.2, 10.0])


def test_easy_backfill_lets_a_long_job_use_nodes_that_the_first_does_not_need() -> None:
    """The first to wait gets the node that is free at 2; the other one is free from 1 on, for whatever fits."""
    jobs = ((HIGH, 8, 0.0, 2.0), (HIGH, 6, 0.0, 9.0), (HIGH, 8, 0.1, 1.0), (HIGH, 2, 0.2, 50.0))

    assert starts_h("easy", *jobs, num_nodes=2) == pytest.approx([0.0, 0.0, 2.0, 0.2])


def test_a_cohort_evicts_for_high_priority_up_to_its_nominal_half() -> None:
    runs = (spot("a", 8, "n0", 0.0), spot("b", 8, "n1", 100.0))

    assert victims("kueue_cohort", 8.0, *runs) == ["b"]
    assert victims("kueue_cohort", 4.0, *FULL) == ["young"]
    high = Run(Job("h0", Kind.HIGH, "o", "a", 8.0), ("n0",), 0.0, Grade.HIGH, 0.0)
    assert victims("kueue_cohort", 8.0, high, runs[1]) == []
    assert victims("kueue", 8.0, high, runs[1]) == ["b"]


def test_the_bound_runs_the_job_with_the_least_time_left() -> None:
    """A long job stops for a short one that comes later, loses nothing, and ends as late as all work takes."""
    jobs = ((SPOT, 8, 0.0, 10.0), (HIGH, 8, 1.0, 2.0), (SPOT, 8, 1.0, 1.0))
    outcome = replay(workload(*((k, g, HOUR_S * s, HOUR_S * d) for k, g, s, d in jobs)), find_policy("srtf"))

    assert (outcome.end_s / HOUR_S).tolist() == pytest.approx([13.0, 4.0, 2.0], abs=0.2)
    assert outcome.lost_gpu_s.sum() == 0
