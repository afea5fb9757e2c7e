"""Flat replays at the edges: the smallest caches, the largest blocks, scans with a known answer, and ids of 64 bits."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from takeup.caching.model import FlatResult, FlatTrace
from takeup.caching.simulate.compiled.flat import FLAT_KERNELS, replay_flat
from takeup.caching.simulate.compiled.flat_queues import lru_miss_curve
from takeup.caching.traces.flat import dense_ids, read_oracle_general, write_oracle_general
from workloads import FlatCounts, counts_of

RECORD = np.dtype([("second", "<u4"), ("id", "<u8"), ("size_bytes", "<u4"), ("next", "<i8")])
LARGE_KEYS = np.array([2**64 - 1, 2**63, 0, 2**32, 2**63 - 1], np.uint64)


def flat_trace(requests: list[int], sizes: list[int]) -> FlatTrace:
    return FlatTrace("edge", np.array(requests, np.int32), np.array(sizes, np.int64))


def unit_trace(requests: list[int]) -> FlatTrace:
    return flat_trace(requests, [1] * (max(requests) + 1))


def replay_both_ways(policy: str, trace: FlatTrace, capacity_bytes: int) -> tuple[FlatResult, FlatResult]:
    """Without and with admission."""
    return replay_flat(policy, trace, capacity_bytes), replay_flat(policy, trace, capacity_bytes, admission=True)


@st.composite
def traces(draw: st.DrawFn, max_bytes: int = 9) -> FlatTrace:
    num_blocks = draw(st.integers(1, 9))
    sizes = draw(st.lists(st.integers(1, max_bytes), min_size=num_blocks, max_size=num_blocks))
    return flat_trace(draw(st.lists(st.integers(0, num_blocks - 1), min_size=1, max_size=80)), sizes)


# Sizes --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", FLAT_KERNELS)
@pytest.mark.parametrize("size_bytes", [1, 7])
def test_one_block_as_large_as_the_cache_misses_once(policy: str, size_bytes: int) -> None:
    counts = replay_flat(policy, flat_trace([0] * 70, [size_bytes]), size_bytes)

    assert counts_of(counts) == FlatCounts(num_requests=70, num_hits=69, num_evictions=0, read_bytes=size_bytes)


@pytest.mark.parametrize("policy", FLAT_KERNELS)
@pytest.mark.parametrize("size_bytes", [1, 7])
def test_two_blocks_as_large_as_the_cache_take_turns(policy: str, size_bytes: int) -> None:
    counts = replay_flat(policy, flat_trace([0, 1] * 20, [size_bytes] * 2), size_bytes)

    assert counts_of(counts) == FlatCounts(num_requests=40, num_hits=0, num_evictions=39, read_bytes=40 * size_bytes)


@pytest.mark.parametrize("policy", FLAT_KERNELS)
def test_a_block_that_cannot_fit_is_read_every_time_and_disturbs_nobody(policy: str) -> None:
    with_giant = replay_flat(policy, flat_trace([0, 3, 1, 0, 3, 2, 3, 0, 1], [1, 2, 2, 6]), 4)
    without = replay_flat(policy, flat_trace([0, 1, 0, 2, 0, 1], [1, 2, 2]), 4)

    assert with_giant.num_hits == without.num_hits
    assert with_giant.num_evictions == without.num_evictions
    assert with_giant.read_bytes == without.read_bytes + 3 * 6


@pytest.mark.parametrize("policy", FLAT_KERNELS)
@settings(deadline=None)
@given(trace=traces())
def test_a_cache_for_everything_misses_first_requests_only(policy: str, trace: FlatTrace) -> None:
    seen = sorted(set(trace.requests.tolist()))
    counts = replay_flat(policy, trace, int(trace.block_bytes.sum()))

    assert counts.num_misses == len(seen)
    assert counts.num_evictions == 0
    assert counts.read_bytes == trace.block_bytes[seen].sum()


@pytest.mark.parametrize("policy", FLAT_KERNELS)
@settings(deadline=None)
@given(trace=traces(), capacity_bytes=st.integers(1, 30))
def test_blocks_that_nobody_asks_for_change_nothing(policy: str, trace: FlatTrace, capacity_bytes: int) -> None:
    wider = FlatTrace("wider", trace.requests, np.append(trace.block_bytes, [1, 40, 2]))

    assert replay_flat(policy, wider, capacity_bytes) == replay_flat(policy, trace, capacity_bytes)


@pytest.mark.parametrize("policy", [name for name in FLAT_KERNELS if name != "s3fifo"])
@settings(deadline=None)
@given(trace=traces(max_bytes=1), capacity_bytes=st.integers(1, 10))
def test_only_the_ratio_of_sizes_to_the_cache_counts(policy: str, trace: FlatTrace, capacity_bytes: int) -> None:
    """For GDSF the left side runs on lists and the right side on a heap; a factor of two is exact in both."""
    doubled = FlatTrace("doubled", trace.requests, 2 * trace.block_bytes)
    here, there = replay_flat(policy, trace, capacity_bytes), replay_flat(policy, doubled, 2 * capacity_bytes)

    assert there.num_hits == here.num_hits
    assert there.num_evictions == here.num_evictions
    assert there.read_bytes == 2 * here.read_bytes


# Scans --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", ["lru", "fifo", "sieve", "lfu"])
@pytest.mark.parametrize("num_blocks", [2, 7, 65])
def test_a_loop_one_block_longer_than_the_cache_never_hits(policy: str, num_blocks: int) -> None:
    counts = replay_flat(policy, unit_trace(list(range(num_blocks)) * 5), num_blocks - 1)

    assert counts.num_hits == 0
    assert counts.num_evictions == 5 * num_blocks - (num_blocks - 1)


@pytest.mark.parametrize("capacity", [1, 2, 6, 64, 100])
@pytest.mark.parametrize("num_rounds", [1, 2, 5, 9])
def test_min_misses_once_in_as_many_requests_as_it_has_places(capacity: int, num_rounds: int) -> None:
    """A loop of n + 1 blocks over n places: the first n requests miss, then number n, 2 n, 3 n and so on.

    At such a miss the block that was just requested is the one that is next requested last, n requests from now.
    """
    trace = unit_trace(list(range(capacity + 1)) * num_rounds)
    num_misses = capacity + (len(trace.requests) - 1) // capacity

    assert replay_flat("min", trace, capacity).num_misses == num_misses
    assert replay_flat("min", trace, capacity).num_evictions == num_misses - capacity


@pytest.mark.parametrize("capacity", [1, 2, 6, 64, 100])
@pytest.mark.parametrize("num_rounds", [1, 2, 5, 9])
def test_min_that_may_refuse_misses_once_in_a_round(capacity: int, num_rounds: int) -> None:
    """The last block of the loop is always the one requested last, so it stays out until the others are done with."""
    trace = unit_trace(list(range(capacity + 1)) * num_rounds)
    counts = replay_flat("min", trace, capacity, admission=True)

    assert counts.num_misses == capacity + num_rounds
    assert counts.num_evictions == 1


@pytest.mark.parametrize("num_blocks", [1, 2, 63, 64, 65, 128, 129])
def test_the_curve_of_a_walk_there_and_back_falls_by_one_with_every_place(num_blocks: int) -> None:
    """Going back, a cache of c places still holds the last c blocks of the way there."""
    there_and_back = [*range(num_blocks), *reversed(range(num_blocks))]
    curve = lru_miss_curve(unit_trace(there_and_back))

    assert curve.num_misses.tolist() == [2 * num_blocks - size for size in range(num_blocks + 1)]


@settings(deadline=None)
@given(requests=st.lists(st.integers(0, 5), min_size=1, max_size=200))
def test_a_single_place_hits_where_a_request_repeats_the_one_before(requests: list[int]) -> None:
    trace = unit_trace(requests)
    num_repeats = sum(here == before for before, here in pairwise(requests))
    counts = replay_flat("lru", trace, 1)

    assert counts.num_hits == num_repeats
    assert counts.num_evictions == counts.num_misses - 1
    assert lru_miss_curve(trace).num_misses[1] == len(requests) - num_repeats
    assert lru_miss_curve(trace).num_misses[-1] == len(set(requests))


# Admission ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", ["lrc", "lerc", "mrd", "next", "min"])
def test_refusing_saves_the_block_that_is_wanted_again_sooner_and_more_often(policy: str) -> None:
    plain, refusing = replay_both_ways(policy, unit_trace([0, 1, 0, 1, 0]), 1)

    assert counts_of(plain) == FlatCounts(num_requests=5, num_hits=0, num_evictions=4, read_bytes=5)
    assert counts_of(refusing) == FlatCounts(num_requests=5, num_hits=2, num_evictions=0, read_bytes=3)


def test_lrc_refuses_at_equal_counts_and_gives_up_what_nobody_reads() -> None:
    """Block 1 has as many requests to come as block 0 and stays out; after its last request block 0 may leave."""
    plain, refusing = replay_both_ways("lrc", unit_trace([0, 1, 0, 1]), 1)

    assert counts_of(plain) == FlatCounts(num_requests=4, num_hits=0, num_evictions=3, read_bytes=4)
    assert counts_of(refusing) == FlatCounts(num_requests=4, num_hits=1, num_evictions=1, read_bytes=3)


@pytest.mark.parametrize(("sizes", "num_evictions"), [([2, 3, 3], 2), ([3, 2, 3], 1)])
def test_lrc_looks_at_the_bytes_of_lower_rank(sizes: list[int], num_evictions: int) -> None:
    """Block 2, three bytes, comes while only block 0 has fewer requests to come.

    With two bytes that is too little: block 2 waits until the others are done with, and both leave. With three bytes
    block 0 leaves for it at once, and stays out when it comes back.
    """
    counts = replay_flat("lrc", flat_trace([0, 1, 2, 0, 1, 1, 2, 2], sizes), 5, admission=True)

    assert counts_of(counts) == FlatCounts(num_requests=8, num_hits=4, num_evictions=num_evictions, read_bytes=11)


def test_min_stays_out_when_the_blocks_wanted_later_are_too_small() -> None:
    """Only block 1, four bytes, is wanted later than block 2, five bytes; without admission block 0 leaves as well."""
    plain, refusing = replay_both_ways("min", flat_trace([0, 1, 2, 0, 2, 1], [6, 4, 5]), 10)

    assert counts_of(plain) == FlatCounts(num_requests=6, num_hits=0, num_evictions=4, read_bytes=30)
    assert counts_of(refusing) == FlatCounts(num_requests=6, num_hits=2, num_evictions=1, read_bytes=20)


def test_min_takes_several_blocks_that_are_all_wanted_later() -> None:
    plain, refusing = replay_both_ways("min", flat_trace([0, 1, 2, 2, 0, 1], [6, 4, 5]), 10)

    assert (
        counts_of(plain)
        == counts_of(refusing)
        == FlatCounts(num_requests=6, num_hits=1, num_evictions=3, read_bytes=25)
    )


# Ids ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["t.bin", "t.oracleGeneral", "t.oracleGeneral.gz"])
def test_ids_of_64_bits_and_sizes_of_32_survive_a_file(tmp_path: Path, name: str) -> None:
    trace = flat_trace([0, 1, 2, 1, 3, 4, 0], [2**32 - 1, 1, 2**31, 3, 4])

    write_oracle_general(tmp_path / name, trace, LARGE_KEYS)
    back = read_oracle_general(tmp_path / name)

    assert back.requests.tolist() == trace.requests.tolist()
    assert back.block_bytes.tolist() == trace.block_bytes.tolist()


def test_a_written_file_names_the_keys_and_the_next_requests(tmp_path: Path) -> None:
    write_oracle_general(tmp_path / "t.bin", flat_trace([0, 1, 0, 4, 1], [1] * 5), LARGE_KEYS)
    records = np.fromfile(tmp_path / "t.bin", RECORD)

    assert records["id"].tolist() == [2**64 - 1, 2**63, 2**64 - 1, 2**63 - 1, 2**63]
    assert records["next"].tolist() == [2, 4, -1, -1, -1]


@pytest.mark.parametrize("shift", [0, 20, 32, 51])
def test_keys_that_differ_in_few_bits_are_told_apart(shift: int) -> None:
    """Many more keys than the first table holds, all alike but for a few bits, each seen twice."""
    distinct = np.random.default_rng(shift).permutation(6000).astype(np.uint64) << np.uint64(shift)
    ids, uniques = dense_ids(np.concatenate((distinct, distinct[::-1])))

    assert uniques.tolist() == distinct.tolist()
    assert ids.tolist() == [*range(6000), *reversed(range(6000))]


def test_the_order_of_first_appearance_is_not_the_order_of_the_keys() -> None:
    numbers, number_keys = dense_ids(np.array([2**63, 5, 2**64 - 1, 5, 0], np.uint64))
    words, word_keys = dense_ids(np.array(["pear", "apple", "pear", "", "fig"]))

    assert (numbers.tolist(), number_keys.tolist()) == ([0, 1, 2, 1, 3], [2**63, 5, 2**64 - 1, 0])
    assert (words.tolist(), word_keys.tolist()) == ([0, 1, 0, 2, 3], ["pear", "apple", "", "fig"])
