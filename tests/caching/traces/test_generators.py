"""The embedded workloads: valid, reproducible, and of the shape that their names promise."""

from __future__ import annotations

import numpy as np
import pytest

from takeup.caching.model import Workload
from takeup.caching.traces import WORKLOADS, generate
from takeup.caching.traces.generators import GraphShape, graph_iterations, scan, zip_tenants
from takeup.errors import UnknownName

ARRAYS = [name for name in Workload.__slots__ if name != "name"]


def rng(seed: int = 1) -> np.random.Generator:
    return np.random.default_rng(seed)


def same(one: Workload, other: Workload) -> bool:
    return all(np.array_equal(getattr(one, name), getattr(other, name)) for name in ARRAYS)


def consumers(workload: Workload) -> list[int]:
    """How many tasks read each block."""
    counts: list[int] = np.bincount(workload.input_blocks, minlength=workload.num_blocks).tolist()
    return counts


@pytest.fixture(scope="module", params=WORKLOADS)
def workload(request: pytest.FixtureRequest) -> Workload:
    return generate(request.param, rng())


# Every workload -----------------------------------------------------------------------------------------------------


def test_the_name_is_the_one_it_was_asked_by(workload: Workload) -> None:
    assert workload.name in WORKLOADS


@pytest.mark.parametrize("name", WORKLOADS)
def test_the_same_seed_gives_the_same_workload_and_another_one_does_not(name: str) -> None:
    assert same(generate(name, rng()), generate(name, rng()))
    assert not same(generate(name, rng()), generate(name, rng(2)))


def test_every_block_has_one_producer_that_comes_before_its_readers(workload: Workload) -> None:
    readers = np.repeat(np.arange(workload.num_tasks), np.diff(workload.input_starts))

    assert np.array_equal(np.sort(workload.output_blocks), np.arange(workload.num_blocks))
    assert np.all(workload.block_producer[workload.input_blocks] < readers)
    assert np.all(workload.block_producer >= 0)


def test_sizes_times_and_workers_are_possible(workload: Workload) -> None:
    assert workload.block_bytes.min() >= 1
    assert workload.task_compute_s.min() > 0
    assert np.all((workload.block_worker >= 0) & (workload.block_worker < workload.num_workers))
    assert set(workload.block_worker.tolist()) == set(range(workload.num_workers))


def test_a_stage_waits_for_an_earlier_one_or_for_none(workload: Workload) -> None:
    assert np.all(workload.stage_after < np.arange(len(workload.stage_after)))
    assert np.all(np.diff(workload.task_stage) >= 0)


def test_an_unknown_workload_gets_a_suggestion() -> None:
    with pytest.raises(UnknownName, match="no caching workload 'pagerang'; did you mean 'pagerank'"):
        generate("pagerang", rng())


# Zip ----------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def zipped() -> Workload:
    return zip_tenants(rng(), num_tenants=3, num_blocks=4, num_workers=5)


def test_zip_loads_two_files_for_each_tenant_and_reads_them_in_pairs(zipped: Workload) -> None:
    assert zipped.num_tasks == 3 * 4 * 3
    assert zipped.num_blocks == 3 * 4 * 2
    assert zipped.num_accesses == 3 * 4 * 2
    assert consumers(zipped) == [1] * zipped.num_blocks
    assert [len(task.inputs) for task in zipped.tasks()] == [0] * 24 + [2] * 12


def test_zip_peers_live_together_and_their_task_runs_there(zipped: Workload) -> None:
    for task in zipped.tasks():
        workers = {int(zipped.block_worker[block]) for block in task.inputs + task.outputs}
        assert workers == {task.worker}


def test_zip_peers_are_of_the_same_tenant(zipped: Workload) -> None:
    jobs = zipped.task_job.tolist()
    for task in zipped.tasks():
        assert {jobs[zipped.block_producer[block]] for block in task.inputs} <= {task.job}


def test_zip_has_three_stages_one_after_the_other(zipped: Workload) -> None:
    assert zipped.stage_after.tolist() == [-1, 0, 1]
    assert zipped.task_stage.tolist() == [0] * 12 + [1] * 12 + [2] * 12


def test_zip_tenants_take_turns_but_each_goes_in_order(zipped: Workload) -> None:
    first_file = [task for task in zipped.tasks() if task.stage == 0]
    turns = [task.job for task in first_file]

    assert sorted(turns) == [0] * 4 + [1] * 4 + [2] * 4
    assert turns != sorted(turns)
    for tenant in range(3):
        workers = [task.worker for task in first_file if task.job == tenant]
        assert workers == [(tenant * 4 + index) % 5 for index in range(4)]


# Graphs -------------------------------------------------------------------------------------------------------------


SMALL = GraphShape(num_partitions=3, num_workers=2, num_iterations=4)


def test_graph_iterations_read_edges_every_time_vertices_twice_and_messages_once() -> None:
    workload = graph_iterations("graph", SMALL, rng())
    edges, others = consumers(workload)[:3], consumers(workload)[3:]

    assert workload.num_tasks == workload.num_blocks == 3 * (2 + 2 * 4)
    assert workload.num_accesses == 3 * 4 * 4
    assert edges == [4] * 3
    # vertices, then messages and vertices of every iteration; nobody reads the last vertices
    assert others == [2] * 3 + ([1] * 3 + [2] * 3) * 3 + [1] * 3 + [0] * 3


def test_graph_iterations_are_jobs_of_two_stages_in_a_row() -> None:
    workload = graph_iterations("graph", SMALL, rng())

    assert sorted(set(workload.task_job.tolist())) == [0, 1, 2, 3, 4]
    assert workload.stage_after.tolist() == list(range(-1, 8))


def test_the_blocks_of_a_partition_stay_on_one_worker() -> None:
    workload = graph_iterations("graph", SMALL, rng())
    for task in workload.tasks():
        assert {int(workload.block_worker[block]) for block in task.inputs + task.outputs} == {task.worker}


def test_messages_shrink_when_the_shape_says_so() -> None:
    even = GraphShape(num_partitions=1, num_workers=1, num_iterations=3, message_bytes=800, skew=0.0, shrink=0.5)
    workload = graph_iterations("graph", even, rng())
    messages = workload.block_bytes[2::2].tolist()

    assert messages == [800, 400, 200]


def test_partitions_are_uneven_by_the_skew_and_keep_their_mean() -> None:
    sizes = graph_iterations("graph", GraphShape(num_partitions=4000, num_iterations=1), rng()).block_bytes[:4000]

    assert np.std(np.log(sizes)) == pytest.approx(0.3, rel=0.1)
    assert np.mean(sizes) == pytest.approx(40e6, rel=0.05)


# Scan -----------------------------------------------------------------------------------------------------------


def test_scan_reads_all_blocks_in_order_in_every_pass() -> None:
    workload = scan(rng(), num_blocks=5, num_passes=3, num_workers=2)

    assert workload.input_blocks.tolist() == [0, 1, 2, 3, 4] * 3
    assert workload.task_job.tolist() == [0] * 5 + [1] * 5 + [2] * 5 + [3] * 5
    assert workload.stage_after.tolist() == [-1, 0, 1, 2]
