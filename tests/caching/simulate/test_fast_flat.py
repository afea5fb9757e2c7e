"""The compiled replays decide as the plain policies do, on any trace, sizes and capacity."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from takeup.caching.contract import Policy
from takeup.caching.groups import GroupTable
from takeup.caching.model import FlatResult, FlatTrace
from takeup.caching.policies import POLICIES
from takeup.caching.simulate.compiled.flat import FLAT_KERNELS, NEVER, next_requests, replay_flat
from takeup.errors import BadInput, UnknownName
from workloads import FlatCounts, counts_of

REFUSING = ("lrc", "lerc", "mrd", "next", "min")


def flat_trace(requests: list[int], sizes: list[int]) -> FlatTrace:
    return FlatTrace("test", np.array(requests, np.int32), np.array(sizes, np.int64))


@st.composite
def traces(draw: st.DrawFn, max_bytes: int = 6) -> FlatTrace:
    num_blocks = draw(st.integers(1, 12))
    sizes = draw(st.lists(st.integers(1, max_bytes), min_size=num_blocks, max_size=num_blocks))
    return flat_trace(draw(st.lists(st.integers(0, num_blocks - 1), max_size=120)), sizes)


def replay_plainly(name: str, trace: FlatTrace, capacity_bytes: int, admission: bool) -> FlatResult:
    """Drive the object-level policy over the trace; every request is one consumer, served in order."""
    table = GroupTable()
    for index, block in enumerate(trace.requests.tolist()):
        table.open(index, [block], position=index, stage=index)
    options: dict[str, Any] = {"admission": admission} if POLICIES[name].uses_table else {}
    policy = POLICIES[name].make(table, capacity_bytes, **options)
    cached: dict[int, int] = {}
    num_hits = num_evictions = read_bytes = 0
    for index, block in enumerate(trace.requests.tolist()):
        table.close(index)
        if block in cached:
            policy.read(block)
            num_hits += 1
            continue
        read_bytes += int(trace.block_bytes[block])
        num_evictions += _store(policy, table, cached, capacity_bytes, block, int(trace.block_bytes[block]))
    return FlatResult(name, capacity_bytes, len(trace.requests), num_hits, num_evictions, read_bytes)


def _store(
    policy: Policy, table: GroupTable, cached: dict[int, int], capacity_bytes: int, block: int, size_bytes: int
) -> int:
    table.cached(block)
    room = policy.make_room(block, size_bytes, capacity_bytes - sum(cached.values()), ())
    for victim in room.evict:
        assert isinstance(victim.block, int)
        del cached[victim.block]
        policy.removed(victim.block)
        table.lost(victim.block)
    if room.admit:
        policy.stored(block, size_bytes)
        cached[block] = size_bytes
    else:
        table.lost(block)
    assert sum(cached.values()) <= capacity_bytes
    return len(room.evict)


@pytest.mark.parametrize("policy", FLAT_KERNELS)
@settings(max_examples=150, deadline=None)
@given(trace=traces(), capacity_bytes=st.integers(1, 40))
def test_a_kernel_counts_what_the_plain_policy_does(policy: str, trace: FlatTrace, capacity_bytes: int) -> None:
    expected = replay_plainly(policy, trace, capacity_bytes, admission=False)

    assert replay_flat(policy, trace, capacity_bytes) == expected


@pytest.mark.parametrize("policy", FLAT_KERNELS)
@settings(max_examples=100, deadline=None)
@given(trace=traces(max_bytes=1), capacity_bytes=st.integers(1, 14))
def test_a_kernel_agrees_on_unit_sizes(policy: str, trace: FlatTrace, capacity_bytes: int) -> None:
    expected = replay_plainly(policy, trace, capacity_bytes, admission=False)

    assert replay_flat(policy, trace, capacity_bytes) == expected


@pytest.mark.parametrize("policy", REFUSING)
@settings(max_examples=150, deadline=None)
@given(trace=traces(), capacity_bytes=st.integers(1, 40))
def test_a_kernel_refuses_what_the_plain_policy_refuses(policy: str, trace: FlatTrace, capacity_bytes: int) -> None:
    expected = replay_plainly(policy, trace, capacity_bytes, admission=True)

    assert replay_flat(policy, trace, capacity_bytes, admission=True) == expected


@pytest.mark.parametrize("policy", FLAT_KERNELS)
def test_a_kernel_agrees_on_a_trace_that_fills_its_queues_many_times(policy: str) -> None:
    rng = np.random.default_rng(3)
    requests = (rng.zipf(1.2, 6000) % 150).astype(np.int32)
    trace = FlatTrace("long", requests, rng.integers(1, 9, 150))

    assert replay_flat(policy, trace, 97) == replay_plainly(policy, trace, 97, admission=False)


@pytest.mark.parametrize("policy", [name for name in FLAT_KERNELS if name not in ("min", "next", "mrd")])
@given(trace=traces(max_bytes=1), capacity=st.integers(1, 14))
def test_nothing_beats_min_on_unit_sizes(policy: str, trace: FlatTrace, capacity: int) -> None:
    bound = replay_flat("min", trace, capacity, admission=True).num_hits

    assert replay_flat(policy, trace, capacity).num_hits <= bound
    assert replay_flat("min", trace, capacity).num_hits <= bound


@given(trace=traces())
def test_the_next_request_is_the_first_later_one_of_the_same_block(trace: FlatTrace) -> None:
    requests = trace.requests.tolist()
    expected = [requests.index(block, at + 1) if block in requests[at + 1 :] else NEVER for at, block in _pairs(trace)]

    assert next_requests(trace.requests).tolist() == expected


def _pairs(trace: FlatTrace) -> list[tuple[int, int]]:
    return list(enumerate(trace.requests.tolist()))


@pytest.mark.parametrize("policy", FLAT_KERNELS)
def test_an_empty_trace_has_no_hits(policy: str) -> None:
    counts = replay_flat(policy, flat_trace([], []), 5)

    assert counts_of(counts) == FlatCounts(0, 0, 0, 0)
    assert counts.hit_share == 0


@pytest.mark.parametrize("policy", FLAT_KERNELS)
def test_a_block_larger_than_the_cache_evicts_nothing(policy: str) -> None:
    counts = replay_flat(policy, flat_trace([0, 1, 0], [2, 9]), 5)

    assert counts_of(counts) == FlatCounts(num_requests=3, num_hits=1, num_evictions=0, read_bytes=11)


def test_hits_and_misses_add_up() -> None:
    counts = replay_flat("lru", flat_trace([0, 0, 1, 0], [1, 1]), 1)

    assert counts.num_misses == 3
    assert counts.hit_share == 0.25


def test_min_finds_its_victim_across_many_words_of_its_index() -> None:
    num_scans = 3000
    requests: npt.NDArray[np.int32] = np.concatenate(([0, 1, 2], np.arange(3, 3 + num_scans), [1, 0])).astype(np.int32)
    trace = FlatTrace("far", requests, np.ones(3 + num_scans, np.int64))

    assert replay_flat("min", trace, 3).num_hits == 2


def test_a_policy_without_a_kernel_is_named() -> None:
    with pytest.raises(UnknownName, match="did you mean 'lru'"):
        replay_flat("lrru", flat_trace([0], [1]), 1)


def test_a_cache_without_room_is_refused() -> None:
    with pytest.raises(BadInput, match="above zero"):
        replay_flat("lru", flat_trace([0], [1]), 0)


def test_admission_is_refused_for_policies_that_cannot_compare() -> None:
    with pytest.raises(BadInput, match="lru admits every block"):
        replay_flat("lru", flat_trace([0], [1]), 1, admission=True)


def test_more_requests_than_an_index_can_count_are_refused() -> None:
    endless = np.broadcast_to(np.int32(0), (2**31,))

    with pytest.raises(BadInput, match="replay the trace in parts"):
        replay_flat("lru", FlatTrace("endless", endless, np.ones(1, np.int64)), 1)
