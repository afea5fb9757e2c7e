"""Rows as a state: which GPUs are whose, which pool a job belongs to, and for whom nodes are kept."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

import pytest

from takeup.cluster.engines.slurm.journal import Notice, SlurmLedger
from takeup.cluster.engines.slurm.rows import GpuRequest, JobRow, JobStatus, NodeRow, QosClasses
from takeup.cluster.engines.slurm.snapshot import ClusterSnapshot, build_state
from takeup.cluster.model import Grade

NODES = {
    "n0": NodeRow("n0", "a100", 8, is_fit=True),
    "n1": NodeRow("n1", "a100", 8, is_fit=True),
    "n2": NodeRow("n2", "h800", 8, is_fit=True),
}
HELD = JobRow(
    id="1",
    status=JobStatus.HELD,
    qos="spot",
    account="research",
    ask=GpuRequest("a100", 2, 1, is_apart=True),
    nodes=(),
    gpus_on=(),
    required_nodes=(),
    submit_s=0.0,
    start_s=0.0,
    eligible_s=0.0,
    num_restarts=0,
    comments=("takeup gate", ""),
)
RUNNING = replace(HELD, status=JobStatus.RUNNING, nodes=("n0",), gpus_on=(2,))


def drawn(*rows: JobRow, ledger: SlurmLedger | None = None, resting: Collection[str] = ()) -> ClusterSnapshot:
    return build_state(rows, NODES, ledger or SlurmLedger(), QosClasses(), 100.0, {}, resting)


def test_the_pool_is_the_model_that_was_asked_for() -> None:
    (wait,) = drawn(replace(HELD, ask=GpuRequest("h800", 2, 1, is_apart=True))).state.waiting

    assert wait.job.pool == "h800"


def test_whoever_names_no_model_among_several_is_left_out() -> None:
    picture = drawn(replace(HELD, ask=GpuRequest("", 2, 1, is_apart=True)))

    assert picture.state.waiting == ()
    assert picture.skipped.total() == 1


def test_whoever_ran_before_stays_with_the_model_it_had() -> None:
    evicted = replace(HELD, ask=GpuRequest("", 2, 1, is_apart=True), required_nodes=("n2",), num_restarts=1)
    (wait,) = drawn(evicted, ledger=SlurmLedger(held={"1": 1})).state.waiting

    assert wait.job.pool == "h800"


def test_workers_that_share_nodes_sit_where_their_gpus_are() -> None:
    row = replace(RUNNING, ask=GpuRequest("a100", 2, 3, is_apart=False), nodes=("n0", "n1"), gpus_on=(4, 2))

    (run,) = drawn(row).state.runs

    assert run.nodes == ("n0", "n0", "n1")


@pytest.mark.parametrize("gpus_on", [(5, 1), (4, 4), (6,), (0, 0)])
def test_a_job_that_sits_unlike_it_asked_is_left_alone_with_its_gpus(gpus_on: tuple[int, ...]) -> None:
    row = replace(RUNNING, ask=GpuRequest("a100", 3, 3, is_apart=False), nodes=("n0", "n1"), gpus_on=gpus_on)

    picture = drawn(row)

    assert picture.state.runs == ()
    assert sum(node.num_gpus for node in picture.state.nodes) == 24 - sum(gpus_on)
    assert picture.skipped == {"running jobs that are left alone": 1}


def test_a_job_on_a_node_that_nobody_knows_is_left_alone() -> None:
    picture = drawn(replace(RUNNING, nodes=("gone",)))

    assert picture.state.runs == ()


def test_a_job_on_its_way_out_is_in_no_list() -> None:
    state = drawn(replace(RUNNING, status=JobStatus.LEAVING)).state

    assert (state.runs, state.waiting) == ((), ())
    assert [node.num_gpus for node in state.nodes] == [8, 8, 8]


def test_a_job_that_somebody_else_released_is_no_run_until_slurm_starts_it() -> None:
    state = drawn(replace(HELD, status=JobStatus.RELEASED)).state

    assert (state.runs, state.waiting) == ((), ())


def test_a_released_gang_sits_on_the_nodes_it_was_given() -> None:
    row = replace(
        HELD,
        status=JobStatus.RELEASED,
        ask=GpuRequest("a100", 2, 4, is_apart=False),
        required_nodes=("n0", "n1"),
        qos="spot_idle",
    )

    (run,) = drawn(row).state.runs

    assert (sorted(run.nodes), run.grade, run.start_s) == (["n0", "n0", "n1", "n1"], Grade.OPPORTUNISTIC, 100.0)


def test_guaranteed_gpus_are_counted_by_pool() -> None:
    picture = drawn(
        RUNNING, replace(RUNNING, id="2", qos="spot_idle"), replace(RUNNING, id="3", qos="hp"), replace(RUNNING, id="4")
    )

    assert picture.guaranteed_gpus == {"a100": 4}


def test_whoever_rests_does_not_wait() -> None:
    assert drawn(HELD, resting={"1"}).state.waiting == ()


def test_nodes_of_victims_that_have_to_leave_are_kept_for_whom_they_leave() -> None:
    high = replace(HELD, id="9", qos="hp", ask=GpuRequest("a100", 8, 2, is_apart=True))
    victims = [replace(RUNNING, id=name, nodes=(node,), gpus_on=(8,)) for name, node in (("1", "n0"), ("2", "n1"))]
    victims = [replace(row, ask=GpuRequest("a100", 8, 1, is_apart=True)) for row in victims]
    notices = {row.id: Notice(row.id, "9", 90.0, 150.0) for row in victims}

    state = drawn(high, *victims, ledger=SlurmLedger(notices=notices)).state

    assert state.nominations == {"9": ("n0", "n1")}
    assert [node.num_gpus for node in state.nodes] == [0, 0, 8]


def test_nothing_is_kept_if_it_would_not_be_enough() -> None:
    high = replace(HELD, id="9", qos="hp", ask=GpuRequest("a100", 8, 2, is_apart=True))
    other = replace(RUNNING, id="3", nodes=("n1",), qos="hp")
    notices = {"1": Notice("1", "9", 90.0, 150.0)}

    assert drawn(high, RUNNING, other, ledger=SlurmLedger(notices=notices)).state.nominations == {}
