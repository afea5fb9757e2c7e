"""Numba kernel: an indexed min-heap of flows, from which any flow can be removed.

The key of an unused position is infinite, so that the top can be read without checking for an empty heap.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from takeup.core.arrays import Floats, Ints
from takeup.core.compiled import inlined


class FlowHeap(NamedTuple):
    """Keys and flows in heap order, the position of every flow (-1 if absent), and the size."""

    key: Floats
    flow: Ints
    place: Ints
    size: Ints


def empty_heap(most: int) -> FlowHeap:
    """Allocate a heap for the flows 0 .. most - 1."""
    return FlowHeap(np.full(most, np.inf), np.zeros(most, np.int64), np.full(most, -1), np.zeros(1, np.int64))


@inlined
def heap_push(heap: FlowHeap, flow: int, key: float) -> None:
    """Insert a flow that is not in the heap."""
    place = heap.size[0]
    heap.size[0] = place + 1
    _sift_up(heap, flow, key, place)


@inlined
def heap_remove(heap: FlowHeap, flow: int) -> None:
    """Remove a flow that is in the heap; the last one fills the gap."""
    place, last = heap.place[flow], heap.size[0] - 1
    key, filler = heap.key[last], heap.flow[last]
    heap.size[0] = last
    heap.key[last] = np.inf
    heap.place[flow] = -1
    if place < last:
        _sift_up(heap, filler, key, _sift_down(heap, key, place, last))


@inlined
def _sift_down(heap: FlowHeap, key: float, place: int, size: int) -> int:
    """Sift a gap down while smaller keys below it move up; its final position."""
    child = 2 * place + 1
    while child < size:
        if child + 1 < size and heap.key[child + 1] < heap.key[child]:
            child += 1
        if heap.key[child] >= key:
            break
        _move_entry(heap, child, place)
        place, child = child, 2 * child + 1
    return place


@inlined
def _sift_up(heap: FlowHeap, flow: int, key: float, place: int) -> None:
    """Sift a flow up from a gap while its key is smaller, and store it."""
    while place > 0 and heap.key[(place - 1) // 2] > key:
        _move_entry(heap, (place - 1) // 2, place)
        place = (place - 1) // 2
    heap.key[place] = key
    heap.flow[place] = flow
    heap.place[flow] = place


@inlined
def _move_entry(heap: FlowHeap, source: int, target: int) -> None:
    heap.key[target] = heap.key[source]
    heap.flow[target] = heap.flow[source]
    heap.place[heap.flow[target]] = target
