"""What is no job, no trace and no time is refused by name, before anybody schedules it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from cluster.simulate.cluster_traces import HIGH, SPOT, workload
from takeup.cluster.contract import StaticQuota
from takeup.cluster.model import Evict, Grade, Job, Kind, Node, Run, State, Waiting
from takeup.cluster.policies import find_policy
from takeup.cluster.policies.rule_based import _start_reason
from takeup.cluster.simulate import replay
from takeup.errors import BadInput

GOOD = workload((HIGH, 8, 0, 60), (SPOT, 0.5, 10, 60))
NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("column", "value", "words"),
    [
        ("job_gpus", NAN, "finite number above zero"),
        ("job_gpus", -1.0, "finite number above zero"),
        ("job_gpus", 1.5, "a whole number above one"),
        ("job_workers", 0, "finite number above zero"),
        ("job_duration_s", INF, "finite number above zero"),
        ("job_duration_s", 0.0, "finite number above zero"),
        ("job_submit_s", NAN, "a finite number"),
        ("job_guarantee_h", -1.0, "0 for no promise"),
        ("job_guarantee_h", NAN, "0 for no promise"),
        ("job_checkpoint_s", 0.0, "inf for no checkpoints"),
        ("job_checkpoint_s", NAN, "inf for no checkpoints"),
        ("job_kind", 2, "a number below 2"),
        ("job_pool", 1, "a number below 1"),
        ("job_pool", -1, "a number below 1"),
        ("job_organisation", 7, "a number below 1"),
    ],
)
def test_a_value_of_a_job_that_makes_no_sense_is_named_with_its_place(column: str, value: float, words: str) -> None:
    values = getattr(GOOD, column).copy()
    values[1] = value

    with pytest.raises(BadInput, match=rf"{column}\[1\] is .*{words}"):
        replace(GOOD, **{column: values})


@pytest.mark.parametrize(("column", "value"), [("node_gpus", 0), ("node_gpus", -8), ("node_pool", 3)])
def test_a_value_of_a_node_that_makes_no_sense_is_named_with_its_place(column: str, value: int) -> None:
    with pytest.raises(BadInput, match=rf"{column}\[0\] is {value}"):
        replace(GOOD, **{column: np.array([value])})  # type: ignore[arg-type]


def test_columns_of_different_lengths_are_refused() -> None:
    with pytest.raises(BadInput, match="job_gpus has 1 entries, expected 2"):
        replace(GOOD, job_gpus=np.ones(1))


def test_a_trace_whose_clock_goes_backwards_is_refused() -> None:
    with pytest.raises(BadInput, match="goes backwards; sort jobs"):
        replace(GOOD, job_submit_s=np.array([10.0, 9.0]))


def test_a_trace_without_jobs_can_be_replayed() -> None:
    empty = replace(GOOD, **{name: getattr(GOOD, name)[:0] for name in GOOD.__slots__ if name.startswith("job_")})

    assert replay(empty, find_policy("gfs", StaticQuota(0.5))).metrics().num_jobs == 0


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"gpus_per_worker": NAN}, "give a number above zero"),
        ({"gpus_per_worker": 0.0}, "give a number above zero"),
        ({"gpus_per_worker": 2.5}, "give a whole number"),
        ({"gpus_per_worker": 1.5}, "give a whole number"),
        ({"num_workers": 0}, "give at least one"),
        ({"guarantee_h": NAN}, "0 asks for none"),
        ({"guarantee_h": -2.0}, "0 asks for none"),
        ({"checkpoint_s": 0.0}, "inf if it never does"),
        ({"checkpoint_s": NAN}, "inf if it never does"),
    ],
)
def test_a_job_that_makes_no_sense_is_refused_by_its_name(change: dict[str, float], words: str) -> None:
    good = Job("odd", Kind.SPOT, "org", "a100", 1.0)

    with pytest.raises(BadInput, match=rf"job odd .*{words}"):
        replace(good, **change)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("grade", "num_evicted", "words"),
    [
        (Grade.HIGH, 0, "high priority, idle GPUs fit"),
        (Grade.HIGH, 3, "high priority, room made by 3 evictions"),
        (Grade.GUARANTEED, 0, "inside the quota"),
        (Grade.OPPORTUNISTIC, 0, "idle GPUs, without a promise"),
    ],
)
def test_a_job_is_told_why_it_starts(grade: Grade, num_evicted: int, words: str) -> None:
    assert _start_reason(grade, num_evicted) == words


def test_nobody_is_evicted_twice_because_a_clock_went_backwards() -> None:
    """After the step back the victim has gone and the other runs: the same look again finds nothing more to do."""
    node, victim = Node("n0", "a100", 8), Job("victim", Kind.SPOT, "org", "a100", 8.0)
    winner, scheduler = Job("winner", Kind.HIGH, "org", "a100", 8.0), find_policy("gfs", StaticQuota(0.5))
    first = State(9000, (node,), (Run(victim, ("n0",), 0, Grade.OPPORTUNISTIC, 0),), (Waiting(winner, 5400),))
    evictions = [it for it in scheduler.decide(first) if isinstance(it, Evict)]
    later = State(100, (node,), (Run(winner, ("n0",), 9000, Grade.HIGH, 9000),), (Waiting(victim, 9000, 1),))

    assert [it.job_id for it in evictions] == ["victim"]
    assert not [it for it in scheduler.decide(later) if isinstance(it, Evict)]


def test_a_job_larger_than_its_pool_waits_and_evicts_nobody() -> None:
    node, small = Node("n0", "a100", 8), Job("small", Kind.SPOT, "org", "a100", 1.0)
    giant = Job("giant", Kind.HIGH, "org", "a100", 8.0, num_workers=2)
    state = State(9000, (node,), (Run(small, ("n0",), 0, Grade.OPPORTUNISTIC, 0),), (Waiting(giant, 9000),))

    assert not [it for it in find_policy("gfs", StaticQuota(0.5)).decide(state) if isinstance(it, Evict)]
