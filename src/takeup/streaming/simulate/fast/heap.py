"""Numba kernel: a heap of flows, the one with the least key on top, from which any flow can be taken out.

The key of a place that nobody has is infinite, so that the top can be read without asking whether there is one.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from takeup.core.compiled import inlined

__all__ = ["Heap", "empty_heap", "push", "take_out"]

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


class Heap(NamedTuple):
    """Keys and flows in heap order, the place of every flow (-1 if it is not there), and how many there are."""

    key: Floats
    flow: Ints
    place: Ints
    size: Ints


def empty_heap(most: int) -> Heap:
    """Room for the flows 0 .. most - 1."""
    return Heap(np.full(most, np.inf), np.zeros(most, np.int64), np.full(most, -1), np.zeros(1, np.int64))


@inlined
def push(heap: Heap, flow: int, key: float) -> None:
    """Put in a flow that is not there."""
    place = heap.size[0]
    heap.size[0] = place + 1
    _settle(heap, flow, key, place)


@inlined
def take_out(heap: Heap, flow: int) -> None:
    """Take out a flow that is there; the last one fills its place."""
    place, last = heap.place[flow], heap.size[0] - 1
    key, filler = heap.key[last], heap.flow[last]
    heap.size[0] = last
    heap.key[last] = np.inf
    heap.place[flow] = -1
    if place < last:
        _settle(heap, filler, key, _sunk(heap, key, place, last))


@inlined
def _sunk(heap: Heap, key: float, place: int, size: int) -> int:
    """Where an empty place comes to rest while smaller keys below it move up."""
    child = 2 * place + 1
    while child < size:
        if child + 1 < size and heap.key[child + 1] < heap.key[child]:
            child += 1
        if heap.key[child] >= key:
            break
        _move(heap, child, place)
        place, child = child, 2 * child + 1
    return place


@inlined
def _settle(heap: Heap, flow: int, key: float, place: int) -> None:
    """Put a flow into an empty place, or above it while its key is smaller."""
    while place > 0 and heap.key[(place - 1) // 2] > key:
        _move(heap, (place - 1) // 2, place)
        place = (place - 1) // 2
    heap.key[place] = key
    heap.flow[place] = flow
    heap.place[flow] = place


@inlined
def _move(heap: Heap, source: int, target: int) -> None:
    heap.key[target] = heap.key[source]
    heap.flow[target] = heap.flow[source]
    heap.place[heap.flow[target]] = target
