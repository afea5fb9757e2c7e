"""The simulated engine on workloads small enough to run by hand, and what holds on any workload."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conformance import VARIANTS
from takeup.caching.model import AdmissionDecision, CachingResult, CostModel, EngineModel, Workload
from takeup.caching.policies import find_policy
from takeup.caching.simulate.compiled.replay import replay
from takeup.caching.simulate.plain import Simulation, simulate
from takeup.caching.traces.job_graph import WorkloadBuilder
from takeup.errors import BadInput
from workloads import engines, workloads


def tiny(*tasks: str, **sizes_bytes: int) -> WorkloadBuilder:
    """Tasks written as `ab>c`: read a and b, write c. Each takes no time; blocks have one byte unless told."""
    builder = WorkloadBuilder("tiny")
    for task in tasks:
        inputs, _, outputs = task.partition(">")
        for block in inputs + outputs:
            builder.block(block, sizes_bytes.get(block, 1))
        builder.task(inputs=inputs, outputs=outputs)
    return builder


def run(policy: str, builder: WorkloadBuilder, capacity_bytes: int, **settings: Any) -> CachingResult:
    """Under a disk of one byte a second."""
    engine = EngineModel(capacity_bytes, disk_bytes_per_s=1.0, **settings)
    return simulate(find_policy(policy), builder.build(), engine)


# Hits ---------------------------------------------------------------------------------------------------------------


def test_a_hit_is_effective_only_if_all_inputs_of_the_task_are_there() -> None:
    result = run("lru", tiny("a", "a", "ab", "ab"), capacity_bytes=2)

    assert result.num_accesses == 6
    assert result.num_hits == 0 + 1 + 1 + 2
    assert result.num_effective_hits == 0 + 1 + 0 + 2
    assert result.hit_share == pytest.approx(4 / 6)
    assert result.effective_hit_share == pytest.approx(3 / 6)


def test_an_output_that_enters_the_cache_is_no_access() -> None:
    result = run("lru", tiny(">a", ">b", "a"), capacity_bytes=2)

    assert (result.num_accesses, result.num_hits) == (1, 1)


def test_a_workload_without_reads_has_no_hits_and_no_division_by_zero() -> None:
    result = run("lru", tiny(">a"), capacity_bytes=1)

    assert (result.hit_share, result.effective_hit_share) == (0.0, 0.0)


def test_residency_is_judged_before_anything_is_brought_back() -> None:
    result = run("lru", tiny("a", "ba"), capacity_bytes=1)

    assert result.num_hits == 1  # a is there; it is pinned, so that b cannot push it out
    assert (result.num_evictions, result.num_refused) == (0, 1)


# Disk ---------------------------------------------------------------------------------------------------------------


def test_a_block_is_written_once_and_has_a_clean_copy_afterwards() -> None:
    result = run("lru", tiny(">a", ">b", "a", "b", "a"), capacity_bytes=1)

    assert result.num_evictions == 4
    assert result.written_bytes == 2  # a and b when they leave for the first time
    assert result.read_bytes == 3


def test_source_data_lies_on_disk_and_is_never_written() -> None:
    result = run("lru", tiny("a", "b", "a", a=2, b=3), capacity_bytes=3)

    assert (result.read_bytes, result.written_bytes) == (2 + 3 + 2, 0)


def test_a_refused_output_is_written_and_an_input_is_pinned() -> None:
    result = run("lru", tiny(">a", "a>b", "a", "b"), capacity_bytes=1)

    assert result.num_refused == 1  # b cannot push out the input of its own task
    assert result.num_hits == 2  # a twice
    assert (result.written_bytes, result.read_bytes) == (1 + 1, 1)  # b when refused, a when b comes back


def test_a_block_larger_than_the_cache_is_read_every_time() -> None:
    result = run("lru", tiny("a", "a", a=5), capacity_bytes=4)

    assert (result.num_hits, result.read_bytes, result.num_refused) == (0, 10, 2)


# Recomputation ------------------------------------------------------------------------------------------------------


def chain() -> WorkloadBuilder:
    """a takes 1 s, b 2 s from a, c 4 s from b; then c and at last b are read."""
    builder = WorkloadBuilder("chain")
    for block in "abc":
        builder.block(block, 1)
    builder.task(outputs="a", compute_s=1)
    builder.task(inputs="a", outputs="b", compute_s=2)
    builder.task(inputs="b", outputs="c", compute_s=4)
    builder.task(inputs="c")
    builder.task(inputs="b")
    return builder


def test_a_lost_block_is_computed_again_from_its_lineage() -> None:
    result = run("lru", chain(), 1, miss="recompute")

    assert result.num_hits == 1  # a, for b
    assert result.num_refused == 2  # b and c, each while its input is pinned
    # b from a for c; c from b to be read; a, then b from it, to be read.
    assert result.num_recomputed == 1 + 1 + 2
    assert result.num_evictions == 4  # a for b, b for c, c for a, a for b
    assert result.makespan_s == (1 + 2 + 4) + 2 + 4 + (1 + 2)
    assert (result.read_bytes, result.written_bytes) == (0, 0)


def test_source_data_is_read_from_disk_even_when_the_rest_is_recomputed() -> None:
    result = run("lru", tiny("a>b", "x", "b", a=3), capacity_bytes=1, miss="recompute")

    assert result.num_recomputed == 1
    assert result.read_bytes == 3 + 1 + 3


def references_of_a_at_every_put(**settings: Any) -> list[int]:
    """b comes from a and is pushed out by c before its reader runs."""
    seen: list[int] = []
    engine = EngineModel(1, **settings)
    simulation = Simulation(
        find_policy("lru"), tiny(">a", "a", ">x", "a>b", ">c", ">d", "b").build(), engine, lambda _, room: look()
    )

    def look() -> None:
        seen.append(simulation.table.rc(0))

    simulation.run()
    return seen


def test_the_producer_of_a_lost_block_that_is_still_wanted_becomes_a_consumer_again() -> None:
    # Puts: a; x; a again and b, refused because a is pinned; c; d; then a and b for the reader of b.
    assert references_of_a_at_every_put(miss="recompute") == [2, 1, 0, 0, 1, 1, 0, 0]


def test_with_copies_on_disk_nobody_asks_for_the_inputs_of_a_lost_block() -> None:
    assert references_of_a_at_every_put(miss="disk") == [2, 1, 0, 0, 0, 0, 0]


def test_a_chain_of_lost_blocks_is_wanted_again_down_to_its_beginning() -> None:
    wanted: list[tuple[int, ...]] = []
    workload = tiny(">a", "a>b", "b>c", ">x", ">y", "c").build()
    simulation = Simulation(find_policy("lru"), workload, EngineModel(1, "recompute"), lambda block, _: look(block))

    def look(block: int) -> None:
        if block in (3, 4):  # x and y
            wanted.append(tuple(simulation.table.rc(other) for other in range(3)))

    simulation.run()

    # c was refused, so b, which is in memory, is wanted by the producer of c; once x pushed b out, a is wanted too.
    assert wanted == [(0, 1, 1), (1, 1, 1)]


def test_a_new_job_wants_the_whole_lineage_of_what_was_lost() -> None:
    builder = tiny(">a", "a>b", "b>c", ">x")
    builder.block("y", 1)
    builder.task(outputs="y", job=1)
    builder.task(inputs="c", job=1)
    wanted: list[tuple[int, ...]] = []
    engine = EngineModel(1, "recompute", profile="online")
    simulation = Simulation(find_policy("lru"), builder.build(), engine, lambda block, _: look(block))

    def look(block: int) -> None:
        if block == 4:  # y, the first block of the second job: a, b and c have all been lost by then
            wanted.append(tuple(simulation.table.rc(other) for other in range(3)))

    simulation.run()

    assert wanted == [(1, 1, 1)]


def test_a_lineage_may_be_longer_than_python_lets_functions_nest() -> None:
    builder, length = WorkloadBuilder("long chain"), 1200
    for block in range(length):
        builder.block(block, 1)
        builder.task(inputs=[block - 1] if block else [], outputs=[block])
    for other in "xy":
        builder.block(other, 1)
        builder.task(outputs=other)
    builder.task(inputs=[length - 1])

    # x and y push out the last two blocks, all that a cache of two still holds of the chain.
    assert run("lru", builder, 2, miss="recompute").num_recomputed == length


# What a loss would cost ---------------------------------------------------------------------------------------------


def costs_at_every_put(builder: WorkloadBuilder, engine: EngineModel) -> list[tuple[int, float]]:
    """Each block that is put, and the seconds it is said to take to bring it back."""
    seen: list[tuple[int, float]] = []
    simulation = Simulation(find_policy("lru"), builder.build(), engine, lambda block, _: look(block))

    def look(block: int) -> None:
        seen.append((block, simulation.table.cost_s(block)))

    simulation.run()
    return seen


def test_a_block_without_a_copy_on_disk_costs_a_write_and_a_read() -> None:
    costs = costs_at_every_put(tiny(">a", ">b", "a", a=4, b=4), EngineModel(4, disk_bytes_per_s=2.0))

    assert costs == [(0, 2 * 2.0), (1, 2 * 2.0), (0, 2.0)]


def test_a_block_to_recompute_costs_its_task_and_the_inputs_that_are_lost_too() -> None:
    builder = WorkloadBuilder("costs")
    for block in "azb":
        builder.block(block, 1)
    builder.task(outputs="a", compute_s=1)
    builder.task(outputs="z", compute_s=2)
    builder.task(inputs="az", outputs="b", compute_s=4)

    # z pushes a out; a comes back and is refused, because z is pinned; so b would need a again, but not z.
    assert costs_at_every_put(builder, EngineModel(1, "recompute")) == [(0, 1.0), (1, 2.0), (0, 1.0), (2, 4.0 + 1.0)]


# Time ---------------------------------------------------------------------------------------------------------------


def two_workers(after: int) -> WorkloadBuilder:
    """2 and 5 seconds in one stage, then 1 second on the first worker."""
    builder = WorkloadBuilder("two workers")
    first = builder.stage()
    builder.task(stage=first, worker=0, compute_s=2)
    builder.task(stage=first, worker=1, compute_s=5)
    builder.task(stage=builder.stage(after), worker=0, compute_s=1)
    return builder


def test_a_stage_waits_for_the_slowest_task_of_the_one_before() -> None:
    result = run("lru", two_workers(after=0), 2)

    assert (result.makespan_s, result.task_time_s) == (6, 8)


def test_without_a_barrier_a_worker_goes_on_at_once() -> None:
    assert run("lru", two_workers(after=-1), 2).makespan_s == 5


def test_a_reader_waits_for_the_task_that_writes_its_input() -> None:
    builder = WorkloadBuilder("reader")
    builder.block("a", 1)
    builder.task(outputs="a", worker=0, compute_s=3)
    builder.task(inputs="a", worker=1, compute_s=1)

    assert run("lru", builder, 2).makespan_s == 4


def test_every_worker_has_an_equal_part_of_the_memory() -> None:
    builder = WorkloadBuilder("halves")
    builder.block("a", 2, worker=0)
    builder.block("b", 1, worker=1)
    builder.task(inputs="a")
    builder.task(inputs="a")
    builder.task(inputs="b")
    builder.task(inputs="b")

    assert run("lru", builder, 3).num_hits == 1  # one byte each: b fits and a does not
    assert run("lru", builder, 4).num_hits == 2


@pytest.mark.parametrize(("cost_model", "wait_s"), [("additive", 2 + 3), ("all-or-nothing", 1 + 2 + 3)])
def test_the_cost_model_says_how_long_missing_inputs_take_together(cost_model: CostModel, wait_s: int) -> None:
    result = run("lru", tiny("a", "abc", b=2, c=3), 10, cost_model=cost_model)

    assert result.makespan_s == 1 + wait_s  # the first task reads a


def test_all_or_nothing_computes_again_what_was_there() -> None:
    builder = WorkloadBuilder("pair")
    for block in "abx":
        builder.block(block, 1)
    builder.task(outputs="b", compute_s=8)
    builder.task(outputs="a", compute_s=4)
    builder.task(outputs="x")
    builder.task(inputs="ab", compute_s=1)

    result = run("lru", builder, 2, miss="recompute", cost_model="all-or-nothing")

    assert result.makespan_s == 8 + 4 + (8 + 4) + 1  # b was pushed out by x, so a does not help


def test_what_is_in_memory_costs_no_time() -> None:
    assert run("lru", tiny(">a", "a", "a"), 1).makespan_s == 0


# Knowledge ----------------------------------------------------------------------------------------------------------


def two_jobs() -> WorkloadBuilder:
    """The first job writes a, b and c; the second reads a."""
    builder = WorkloadBuilder("two jobs")
    for block in "abc":
        builder.block(block, 1)
        builder.task(outputs=block, job=0)
    builder.task(inputs="a", job=1)
    return builder


@pytest.mark.parametrize(("policy", "num_hits"), [("lrc", 0), ("lerc", 0), ("furthest_next_use", 0), ("belady", 1)])
def test_online_the_readers_of_a_job_are_unknown_until_it_starts(policy: str, num_hits: int) -> None:
    assert run(policy, two_jobs(), 2, profile="online").num_hits == num_hits


@pytest.mark.parametrize(
    ("policy", "num_hits"), [("lru", 0), ("lrc", 1), ("lerc", 1), ("furthest_next_use", 1), ("belady", 1)]
)
def test_a_recurring_application_is_known_from_the_beginning(policy: str, num_hits: int) -> None:
    assert run(policy, two_jobs(), 2, profile="recurring").num_hits == num_hits


def test_within_its_own_job_a_reader_is_known_online_too() -> None:
    builder = two_jobs()
    builder.task(inputs="b", job=0)

    assert run("lrc", builder, 2, profile="online").num_hits == 1  # b; a was pushed out by c


# Broadcasts and dead data -------------------------------------------------------------------------------------------


def test_workers_hear_of_an_eviction_only_when_it_breaks_a_complete_group() -> None:
    result = run("lru", tiny(">a", ">b", ">c", ">d", ">e", ">f", "ab"), 3)

    assert result.num_evictions == 5
    assert result.num_broadcasts == 1  # a: then the pair is broken, b breaks nothing more, nobody reads the others


def test_the_inactive_share_is_memory_that_nobody_will_read() -> None:
    result = run("lru", tiny(">a", ">b", "a"), 2)

    # After each task: a is wanted; a is wanted, b is not; neither is.
    assert result.inactive_share == pytest.approx((0 + 1 + 2) / (1 + 2 + 2))


def test_every_decision_is_heard() -> None:
    heard: list[tuple[int, AdmissionDecision]] = []
    workload = tiny(">a", ">b", "b>c").build()
    simulate(find_policy("lru"), workload, EngineModel(1), lambda block, room: heard.append((block, room)))

    assert [(block, room.admit, len(room.evict)) for block, room in heard] == [
        (0, True, 0),
        (1, True, 1),
        (2, False, 0),
    ]


@pytest.mark.parametrize("capacity_bytes", [0, -1])
def test_a_cache_needs_room(capacity_bytes: int) -> None:
    with pytest.raises(BadInput, match="holds nothing; give a capacity above zero"):
        EngineModel(capacity_bytes)


@pytest.mark.parametrize("disk_bytes_per_s", [0.0, -1.0, float("nan")])
def test_a_disk_needs_a_bandwidth(disk_bytes_per_s: float) -> None:
    with pytest.raises(BadInput, match="give a bandwidth above zero"):
        EngineModel(1, disk_bytes_per_s=disk_bytes_per_s)


# On any workload ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("run_it", [simulate, replay], ids=["plain", "compiled"])
@settings(max_examples=60, deadline=None)
@given(workload=workloads(), engine=engines, name=st.sampled_from(VARIANTS))
def test_counts_stay_within_their_bounds(
    run_it: Callable[..., CachingResult], workload: Workload, engine: EngineModel, name: str
) -> None:
    result = run_it(find_policy(name), workload, engine)

    assert 0 <= result.num_effective_hits <= result.num_hits <= result.num_accesses == workload.num_accesses
    assert 0 <= result.effective_hit_share <= result.hit_share <= 1
    assert 0 <= result.num_broadcasts <= result.num_evictions
    assert 0 <= result.inactive_share <= 1
    assert result.written_bytes <= workload.block_bytes[workload.block_producer >= 0].sum()
    assert result.makespan_s <= result.task_time_s + 1e-9
    assert result.task_time_s >= workload.task_compute_s.sum() - 1e-9


@settings(max_examples=60, deadline=None)
@given(workload=workloads(), engine=engines, name=st.sampled_from(VARIANTS))
def test_memory_for_everything_loses_nothing(workload: Workload, engine: EngineModel, name: str) -> None:
    roomy = EngineModel(workload.working_set_bytes * workload.num_workers + 1000, engine.miss, engine.cost_model)
    result = simulate(find_policy(name), workload, roomy)
    sources = {block for block in workload.input_blocks.tolist() if workload.block_producer[block] < 0}

    assert result.num_hits == workload.num_accesses - len(sources)
    assert (result.num_evictions, result.num_refused, result.num_recomputed, result.written_bytes) == (0, 0, 0, 0)


@st.composite
def one_block_at_a_time(draw: st.DrawFn) -> Workload:
    """Blocks of one byte; a task either reads one block, a source or an earlier output, or writes one."""
    builder = WorkloadBuilder("one at a time")
    blocks = [builder.block(f"source {index}", 1) for index in range(draw(st.integers(1, 4)))]
    names = [f"source {block}" for block in blocks]
    for index in range(draw(st.integers(1, 30))):
        if draw(st.integers(0, 3)):
            builder.task(inputs=[draw(st.sampled_from(names))])
        else:
            names.append(f"output {index}")
            builder.block(names[-1], 1)
            builder.task(outputs=[names[-1]])
    return builder.build()


@settings(max_examples=150, deadline=None)
@given(workload=one_block_at_a_time(), capacity_bytes=st.integers(1, 5), name=st.sampled_from(VARIANTS))
def test_no_policy_has_more_hits_than_min_when_a_task_holds_one_block(
    workload: Workload, capacity_bytes: int, name: str
) -> None:
    engine = EngineModel(capacity_bytes)
    best = simulate(find_policy("belady"), workload, engine).num_hits

    assert simulate(find_policy(name), workload, engine).num_hits <= best


def most_hits(requests: list[int], capacity: int) -> int:
    """The best any sequence of decisions can do, by trying them all."""
    states = {frozenset[int](): 0}
    for block in requests:
        following: dict[frozenset[int], int] = {}
        for stored, num_hits in states.items():
            is_hit = block in stored
            choices = [stored] if is_hit else [stored, *(stored - {other} | {block} for other in stored)]
            if not is_hit and len(stored) < capacity:
                choices.append(stored | {block})
            for choice in choices:
                following[choice] = max(following.get(choice, 0), num_hits + is_hit)
        states = following
    return max(states.values())


@settings(max_examples=60, deadline=None)
@given(requests=st.lists(st.integers(0, 5), min_size=1, max_size=20), capacity=st.integers(1, 3))
def test_min_finds_the_optimum_on_a_stream_of_reads(requests: list[int], capacity: int) -> None:
    letters = ["abcdef"[block] for block in requests]

    assert run("belady", tiny(*letters), capacity).num_hits == most_hits(requests, capacity)


def test_min_is_no_bound_where_a_pinned_input_keeps_an_output_out() -> None:
    builder = tiny("a", "b>c", "c", "b", "a", "c")

    # min takes b in, because it is read before a is, and then has no room for c while b is pinned.
    assert run("belady", builder, 1).num_hits == 1
    # By count b is worth no more than a and stays out; c is read twice, so it may push a out, and is hit twice.
    assert run("lrc+admission", builder, 1).num_hits == 2
