"""The builder: numbers, places and order of what is named, and one sentence for everything that cannot be."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from takeup.caching.traces.job_graph import WorkloadBuilder
from takeup.errors import BadInput


def two_blocks() -> WorkloadBuilder:
    builder = WorkloadBuilder("small")
    builder.block("a", 10, worker=1)
    builder.block("b", 20, worker=2)
    return builder


def assert_refused(builder: WorkloadBuilder, *parts: str) -> None:
    with pytest.raises(BadInput) as caught:
        builder.build()
    for part in parts:
        assert part in str(caught.value)


# What comes out -------------------------------------------------------------------------------------------------------


def test_blocks_stages_and_tasks_become_arrays() -> None:
    builder = two_blocks()
    first = builder.stage()
    second = builder.stage(after=first)
    builder.task(outputs=["a"], stage=first, job=3, worker=0, compute_s=1.5)
    builder.task(inputs=["a"], outputs=["b"], stage=second, job=4, worker=5)

    workload = builder.build()

    assert workload.name == "small"
    assert workload.block_bytes.tolist() == [10, 20]
    assert workload.block_worker.tolist() == [1, 2]
    assert workload.block_producer.tolist() == [0, 1]
    assert workload.stage_after.tolist() == [-1, 0]
    assert workload.task_job.tolist() == [3, 4]
    assert workload.task_stage.tolist() == [0, 1]
    assert workload.task_worker.tolist() == [0, 5]
    assert workload.task_compute_s.tolist() == [1.5, 0.0]
    assert [(task.inputs, task.outputs) for task in workload.tasks()] == [((), (0,)), ((0,), (1,))]


def test_a_block_nobody_writes_has_no_producer() -> None:
    builder = two_blocks()
    builder.task(inputs=["a", "b"])

    assert builder.build().block_producer.tolist() == [-1, -1]


def test_blocks_may_be_declared_after_the_tasks_that_mention_them() -> None:
    builder = WorkloadBuilder("late")
    builder.task(inputs=["a"])
    number = builder.block("a", 7)

    assert number == 0
    assert builder.build().block_bytes.tolist() == [7]


def test_any_hashable_names_a_block() -> None:
    builder = WorkloadBuilder("names")
    numbers = [builder.block(name, 1) for name in ("a", 1, ("rdd", 1, 2), frozenset("x"))]

    assert numbers == [0, 1, 2, 3]


def test_inputs_named_twice_are_read_once_in_their_first_order() -> None:
    builder = two_blocks()
    builder.task(inputs=["b", "a", "b"], outputs=[])

    assert builder.build().inputs(0) == (1, 0)


def test_a_task_without_a_stage_is_a_stage_of_its_own_after_nothing() -> None:
    builder = WorkloadBuilder("own")
    shared = builder.stage()
    builder.task(stage=shared)
    builder.task()
    builder.task()
    builder.task(stage=shared)

    workload = builder.build()

    assert workload.task_stage.tolist() == [0, 1, 2, 0]
    assert workload.stage_after.tolist() == [-1, -1, -1]


def test_a_task_without_a_worker_runs_with_its_first_input_else_its_first_output_else_on_worker_0() -> None:
    builder = two_blocks()
    builder.block("c", 30, worker=3)
    builder.task(inputs=["b", "a"], outputs=["c"])
    builder.task(inputs=["c"], worker=0)
    builder.task()
    builder.block("d", 1, worker=4)
    builder.task(outputs=["d"])

    assert builder.build().task_worker.tolist() == [2, 0, 0, 4]


def test_saying_the_same_block_twice_changes_nothing() -> None:
    builder = two_blocks()

    assert builder.block("a", 10, worker=1) == 0
    assert builder.build().num_blocks == 2


def test_a_workload_may_be_empty() -> None:
    workload = WorkloadBuilder("empty").build()

    assert (workload.num_tasks, workload.num_blocks, workload.num_accesses) == (0, 0, 0)
    assert workload.input_starts.tolist() == workload.output_starts.tolist() == [0]


def test_building_twice_gives_the_same() -> None:
    builder = two_blocks()
    builder.task(inputs=["a"], outputs=["b"], name="early")
    builder.task(inputs=["b"], name="late")

    first, second = builder.build(), builder.build()

    assert list(first.tasks()) == list(second.tasks())
    assert first.block_producer.tolist() == second.block_producer.tolist() == [-1, 0]


# Order ----------------------------------------------------------------------------------------------------------------


@st.composite
def task_graphs(draw: st.DrawFn) -> list[set[int]]:
    """For every task the tasks whose output it reads; readers may come first."""
    num_tasks = draw(st.integers(1, 8))
    others = st.sets(st.integers(0, num_tasks - 1), max_size=3)
    return [draw(others) for _ in range(num_tasks)]


def build_graph(graph: list[set[int]]) -> WorkloadBuilder:
    builder = WorkloadBuilder("graph")
    for task, producers in enumerate(graph):
        builder.block(task, 1)
        builder.task(inputs=sorted(producers), outputs=[task], job=task, name=f"t{task}")
    return builder


@given(task_graphs())
def test_only_producers_before_their_readers_are_taken(graph: list[set[int]]) -> None:
    builder = build_graph(graph)
    if any(producer >= task for task, producers in enumerate(graph) for producer in producers):
        assert_refused(builder, "writes only then; give the tasks in the order in which they run")
        return

    assert builder.build().task_job.tolist() == list(range(len(graph)))


# What is refused ------------------------------------------------------------------------------------------------------


def test_an_unknown_input_names_task_and_block() -> None:
    builder = two_blocks()
    builder.task(inputs=["a"], name="fine")
    builder.task(inputs=["a", "ghost"], name="reader")

    assert_refused(builder, "task 'reader' reads block 'ghost'", "declare the block")


def test_an_output_without_size_names_task_and_block() -> None:
    builder = two_blocks()
    builder.task()
    builder.task(outputs=["ghost"])

    assert_refused(builder, "task 1 writes block 'ghost'", "declare the block")


@pytest.mark.parametrize("size_bytes", [0, -5, 2**63])
def test_blocks_have_a_size_that_fits(size_bytes: int) -> None:
    builder = WorkloadBuilder("sizes")
    builder.block("a", size_bytes)

    assert_refused(builder, f"block 'a' has {size_bytes} bytes", "at least one byte")


def test_a_block_cannot_have_two_sizes() -> None:
    builder = two_blocks()

    with pytest.raises(BadInput, match=r"'a' is declared as 10 bytes on worker 1 and as 11 bytes on worker 1"):
        builder.block("a", 11, worker=1)


@pytest.mark.parametrize("compute_s", [-0.1, math.nan, math.inf])
def test_tasks_compute_for_a_finite_time(compute_s: float) -> None:
    builder = WorkloadBuilder("times")
    builder.task(compute_s=compute_s, name="odd")

    assert_refused(builder, f"task 'odd' computes for {compute_s} seconds", "finite")


def test_a_block_has_one_producer() -> None:
    builder = two_blocks()
    builder.task(outputs=["a"], name="one")
    builder.task(outputs=["b", "a"], name="two")

    assert_refused(builder, "block 'a' is written by task 'one' and task 'two'", "rename")


@pytest.mark.parametrize("after", [0, 1, -2])
def test_a_stage_waits_for_an_earlier_one(after: int) -> None:
    builder = WorkloadBuilder("stages")
    builder.stage(after=after)

    assert_refused(builder, f"stage 0 waits for stage {after}", "-1 for none")


@pytest.mark.parametrize("stage", [1, -1])
def test_a_task_is_in_a_known_stage(stage: int) -> None:
    builder = WorkloadBuilder("stages")
    builder.stage()
    builder.task(stage=stage, name="lost")

    assert_refused(builder, f"task 'lost' is in stage {stage}", "there are 1 stages")


def test_workers_count_from_0() -> None:
    builder = WorkloadBuilder("workers")
    with pytest.raises(BadInput, match=r"task 0 runs on worker -1; number the workers from 0"):
        builder.task(worker=-1)

    builder.block("a", 1, worker=-2)

    assert_refused(builder, "block 'a' lives on worker -2")


def test_a_task_that_reads_what_a_later_one_writes_is_named_with_it() -> None:
    builder = two_blocks()
    builder.task(inputs=["b"], name="reader")
    builder.task(outputs=["b"], name="writer")

    assert_refused(builder, "task 'reader' reads block 'b', which task 'writer' writes only then")
