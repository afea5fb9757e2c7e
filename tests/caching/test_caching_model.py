"""What a workload says about itself: its live bytes, its ends, its shares."""

from __future__ import annotations

from takeup.caching import EngineModel, find_policy, replay
from takeup.caching.model import Workload
from takeup.caching.traces.job_graph import WorkloadBuilder


def one_of_two_sources_is_dropped() -> Workload:
    """`a` is needed by task 0 and removed before task 1, which writes `b`; nothing else is held."""
    builder = WorkloadBuilder("two")
    stage = builder.stage()
    builder.block("a", 5, 0)
    builder.task(inputs=["a"], outputs=[], job=0, stage=stage, worker=0, compute_s=1.0)
    builder.drop("a")
    builder.block("b", 3, 0)
    builder.task(inputs=[], outputs=["b"], job=0, stage=stage, worker=0, compute_s=1.0)
    return builder.build()


def test_the_working_set_counts_blocks_from_the_task_at_which_they_exist() -> None:
    assert one_of_two_sources_is_dropped().working_set_bytes == 5


def test_only_blocks_that_are_removed_during_the_run_end_before_a_task() -> None:
    assert one_of_two_sources_is_dropped().ending_before() == {1: [0]}


def test_a_single_access_that_hits_is_all_of_them() -> None:
    builder = WorkloadBuilder("one")
    stage = builder.stage()
    builder.block("a", 1, 0)
    builder.task(inputs=[], outputs=["a"], job=0, stage=stage, worker=0, compute_s=1.0)
    builder.task(inputs=["a"], outputs=[], job=0, stage=stage, worker=0, compute_s=1.0)

    result = replay(find_policy("lru"), builder.build(), EngineModel(10))

    assert (result.num_accesses, result.hit_share, result.effective_hit_share) == (1, 1.0, 1.0)
