"""The miss curve says for every size what a replay at that size says."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from takeup.caching.model import FlatTrace
from takeup.caching.simulate.compiled.flat import replay_flat
from takeup.caching.simulate.compiled.flat_queues import lru_miss_curve
from takeup.errors import BadInput


def unit_trace(requests: list[int], num_blocks: int) -> FlatTrace:
    return FlatTrace("test", np.array(requests, np.int32), np.ones(num_blocks, np.int64))


def replayed(trace: FlatTrace) -> list[int]:
    sizes = range(1, trace.num_blocks + 1)
    return [len(trace.requests)] + [replay_flat("lru", trace, size).num_misses for size in sizes]


@settings(deadline=None)
@given(requests=st.lists(st.integers(0, 9), max_size=400))
def test_the_curve_is_the_replay_at_each_size(requests: list[int]) -> None:
    trace = unit_trace(requests, 10)

    assert lru_miss_curve(trace).num_misses.tolist() == replayed(trace)


def test_the_curve_survives_many_renumberings_of_time() -> None:
    requests = np.random.default_rng(5).zipf(1.1, 20_000) % 300
    trace = unit_trace(requests.tolist(), 300)

    assert lru_miss_curve(trace).num_misses.tolist() == replayed(trace)


def test_a_loop_misses_always_until_it_fits() -> None:
    curve = lru_miss_curve(unit_trace([0, 1, 2] * 4, 3))

    assert curve.num_misses.tolist() == [12, 12, 12, 3]
    assert curve.miss_share.tolist() == [1, 1, 1, 0.25]


def test_an_empty_trace_has_an_empty_curve() -> None:
    curve = lru_miss_curve(unit_trace([], 0))

    assert curve.num_misses.tolist() == [0]
    assert curve.miss_share.tolist() == [0]


def test_equal_sizes_other_than_one_are_counted_in_blocks() -> None:
    trace = FlatTrace("equal", np.array([0, 1, 0], np.int32), np.array([7, 7]))

    assert lru_miss_curve(trace).num_misses.tolist() == [3, 3, 2]


def test_different_sizes_are_refused() -> None:
    with pytest.raises(BadInput, match="3 to 7 bytes"):
        lru_miss_curve(FlatTrace("mixed", np.array([0, 1], np.int32), np.array([3, 7])))
