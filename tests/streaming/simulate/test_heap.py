"""The heap of flows: the least key on top after any pushes and removals."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from numba import njit

from takeup.streaming.simulate.events import FlowHeap, empty_heap, heap_push, heap_remove

MOST = 12


def _turn(heap: FlowHeap, flow: int, key: float) -> None:
    """Put a flow in, or take it out if it is there."""
    if heap.place[flow] < 0:
        heap_push(heap, flow, key)
    else:
        heap_remove(heap, flow)


turn = cast(
    Callable[[FlowHeap, int, float], None], cast(Any, njit)(_turn)
)  # not cached: it would outlive a change of the heap


def check(heap: FlowHeap, expected: dict[int, float]) -> None:
    size = int(heap.size[0])
    assert size == len(expected)
    assert {int(flow): float(key) for flow, key in zip(heap.flow[:size], heap.key[:size], strict=True)} == expected
    assert heap.key[0] == min(expected.values(), default=np.inf)
    assert np.isinf(heap.key[size:]).all()
    assert [int(heap.place[flow]) for flow in heap.flow[:size]] == list(range(size))
    assert {flow for flow in range(MOST) if heap.place[flow] >= 0} == set(expected)


@given(st.lists(st.tuples(st.integers(0, MOST - 1), st.integers(-9, 9)), max_size=60))
def test_the_least_key_is_on_top_after_any_pushes_and_removals(steps: list[tuple[int, int]]) -> None:
    heap, expected = empty_heap(MOST), dict[int, float]()
    for flow, key in steps:
        turn(heap, flow, float(key))
        if expected.pop(flow, None) is None:
            expected[flow] = float(key)
        check(heap, expected)
