"""Compiled replays of the policies that rank by a number: LFU and LRC on bucket queues, GDSF on a heap.

How it works. LFU ranks by past requests and LRC by future ones: whole numbers that change by one at every request,
with ties to the least recent. So there is one list per rank, and a request moves the block to the end of the
neighbouring list: the first block of the lowest list is the victim, and no step depends on the size of the cache. A
list is a ring through a sentinel, the node whose index is the rank. Other nodes are handed out to blocks while they
are cached, and reused, so that all links in use stay close together in memory.

GDSF ranks by a real number that only grows while a block is cached. So a heap may keep old numbers: what rises to its
top with an old number sinks back with the new one, and hits never touch the heap.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from numba import njit

from takeup.caching.policies.fast.flat_queues import Bytes, Counts, Requests

__all__ = ["replay_by_count", "replay_gdsf"]

Links = npt.NDArray[np.uint32]
NEXT, PREVIOUS = 0, 1  # columns of the links
NODE, RANK = 0, 1  # columns of the state of a block; node 0 stands for "not cached"


@njit(cache=True)
def _unlink(links: Links, node: int) -> None:
    following, previous = links[node, NEXT], links[node, PREVIOUS]
    links[previous, NEXT] = following
    links[following, PREVIOUS] = previous


@njit(cache=True)
def _append(links: Links, rank: int, node: int) -> None:
    last = links[rank, PREVIOUS]
    links[node, NEXT] = rank
    links[node, PREVIOUS] = last
    links[last, NEXT] = node
    links[rank, PREVIOUS] = node


@njit(cache=True)
def _lower_bytes(
    links: Links, num_ranks: int, owner: Links, block_bytes: Bytes, lowest: int, limit: int, enough_bytes: int
) -> int:
    """Bytes of blocks ranked from `lowest` up to, not including, `limit`; stops as soon as they are enough."""
    found_bytes = 0
    for rank in range(lowest, limit):
        node = links[rank, NEXT]
        while node >= num_ranks and found_bytes < enough_bytes:
            found_bytes += block_bytes[owner[node - num_ranks]]
            node = links[node, NEXT]
    return found_bytes


@njit(cache=True)
def replay_by_count(
    requests: Requests, block_bytes: Bytes, capacity_bytes: int, admission: bool, counts_past: bool
) -> Counts:
    """Fewest requests leaves first: past ones since the block came in (LFU), or those still to come (LRC).

    With admission, a block enters only for blocks of strictly lower rank.
    """
    num_blocks = len(block_bytes)
    state = np.zeros((num_blocks, 2), np.uint32)
    for block in requests:
        state[block, RANK] += 1
    num_ranks = 1 + (state[:, RANK].max() if num_blocks else 0)
    if counts_past:
        state[:, RANK] = 0
    links = np.empty((num_ranks + num_blocks, 2), np.uint32)
    for sentinel in range(num_ranks):
        links[sentinel] = sentinel
    owner = np.empty(num_blocks, np.uint32)
    spare = np.empty(num_blocks, np.uint32)  # nodes handed back
    num_spare, num_nodes, lowest = 0, num_ranks, 0
    step = 1 if counts_past else -1
    num_hits, num_evictions, read_bytes, free_bytes = 0, 0, 0, capacity_bytes
    for block in requests:
        rank = state[block, RANK] + step
        state[block, RANK] = rank
        node = state[block, NODE]
        if node:
            num_hits += 1
            _unlink(links, node)
        else:
            size_bytes = block_bytes[block]
            read_bytes += size_bytes
            if size_bytes > capacity_bytes:
                continue
            missing_bytes = size_bytes - free_bytes
            if admission and missing_bytes > 0:
                lower_bytes = _lower_bytes(links, num_ranks, owner, block_bytes, lowest, rank, missing_bytes)
                if lower_bytes < missing_bytes:
                    continue
            while free_bytes < size_bytes:
                last_node = links[lowest, NEXT]
                if last_node < num_ranks:
                    lowest += 1
                    continue
                _unlink(links, last_node)
                victim = owner[last_node - num_ranks]
                state[victim, NODE] = 0
                if counts_past:
                    state[victim, RANK] = 0
                spare[num_spare] = last_node
                num_spare += 1
                free_bytes += block_bytes[victim]
                num_evictions += 1
            free_bytes -= size_bytes
            if num_spare:
                num_spare -= 1
                node = spare[num_spare]
            else:
                node = np.uint32(num_nodes)
                num_nodes += 1
            owner[node - num_ranks] = block
            state[block, NODE] = node
        _append(links, rank, node)
        lowest = min(lowest, rank)
    return num_hits, num_evictions, read_bytes


Entry = np.dtype([("priority", np.float64), ("touched", np.int64), ("block", np.int64)])
Heap = npt.NDArray[np.void]


@njit(cache=True)
def _is_before(heap: Heap, left: int, right: int) -> bool:
    """Without a branch: which of two children is smaller cannot be predicted."""
    is_lower = heap[left].priority < heap[right].priority
    is_equal = heap[left].priority == heap[right].priority
    return is_lower | (is_equal & (heap[left].touched < heap[right].touched))


@njit(cache=True)
def _sink(heap: Heap, length: int) -> None:
    """Take the entry at index `length`, put it in place of the top one, and let it down to where it belongs.

    It usually belongs near the bottom, so go there first, along the smaller children, and then back up.
    """
    place = 0
    child = 1
    while child + 1 < length:
        child += _is_before(heap, child + 1, child)
        heap[place] = heap[child]
        place = child
        child = 2 * place + 1
    if child < length:
        heap[place] = heap[child]
        place = child
    _rise(heap, place, length)


@njit(cache=True)
def _rise(heap: Heap, place: int, entry: int) -> None:
    """Put the entry at index `entry` into `place`, or further up if it is smaller than what stands there."""
    parent = (place - 1) >> 1
    while place > 0 and _is_before(heap, entry, parent):
        heap[place] = heap[parent]
        place = parent
        parent = (place - 1) >> 1
    heap[place] = heap[entry]


@njit(cache=True)
def replay_gdsf(requests: Requests, block_bytes: Bytes, capacity_bytes: int) -> Counts:
    """Lowest priority leaves first: age plus reads per byte, where the age is the priority of the last victim."""
    num_blocks = len(block_bytes)
    priority = np.empty(num_blocks, np.float64)
    touched = np.empty(num_blocks, np.int64)
    frequency = np.zeros(num_blocks, np.int64)
    heap = np.empty(num_blocks + 1, Entry)
    length, age = 0, 0.0
    num_hits, num_evictions, read_bytes, free_bytes = 0, 0, 0, capacity_bytes
    for now in range(len(requests)):
        block = requests[now]
        is_hit = frequency[block] > 0
        size_bytes = block_bytes[block]
        if is_hit:
            num_hits += 1
        else:
            read_bytes += size_bytes
            if size_bytes > capacity_bytes:
                continue
            while free_bytes < size_bytes:
                victim = heap[0].block
                if touched[victim] != heap[0].touched:
                    heap[length].priority = priority[victim]
                    heap[length].touched = touched[victim]
                    heap[length].block = victim
                    _sink(heap, length)
                    continue
                age = priority[victim]
                frequency[victim] = 0
                free_bytes += block_bytes[victim]
                num_evictions += 1
                length -= 1
                _sink(heap, length)
            free_bytes -= size_bytes
        frequency[block] += 1
        priority[block] = age + frequency[block] / size_bytes
        touched[block] = now
        if not is_hit:
            heap[length].priority = priority[block]
            heap[length].touched = now
            heap[length].block = block
            _rise(heap, length, length)
            length += 1
    return num_hits, num_evictions, read_bytes
