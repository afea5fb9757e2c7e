"""The stored blocks of one worker as an indexed binary heap: the block that leaves first is on top.

Blocks are ordered by (key1, key2, last use); each knows its place, so that it can move when its keys change.
"""

from __future__ import annotations

from numba import njit

from takeup.caching.policies.fast.layout import Run

__all__ = ["lower", "pop", "push", "settle", "top"]


@njit(cache=True)
def _before(run: Run, a: int, b: int) -> bool:
    """Does block `a` leave before block `b`?"""
    if run.blocks[a].key1 != run.blocks[b].key1:
        return run.blocks[a].key1 < run.blocks[b].key1
    if run.blocks[a].key2 != run.blocks[b].key2:
        return run.blocks[a].key2 < run.blocks[b].key2
    return run.blocks[a].last_used < run.blocks[b].last_used


@njit(cache=True)
def settle(run: Run, worker: int, place: int) -> None:
    """Move the block at `place` up or down to where it belongs."""
    start, size = run.workers[worker].heap_start, run.workers[worker].heap_size
    block = run.heap[start + place]
    while place > 0:
        above = run.heap[start + (place - 1) // 2]
        if not _before(run, block, above):
            break
        run.heap[start + place] = above
        run.blocks[above].heap_place = place
        place = (place - 1) // 2
    while 2 * place + 1 < size:
        child = 2 * place + 1
        if child + 1 < size and _before(run, run.heap[start + child + 1], run.heap[start + child]):
            child += 1
        below = run.heap[start + child]
        if not _before(run, below, block):
            break
        run.heap[start + place] = below
        run.blocks[below].heap_place = place
        place = child
    run.heap[start + place] = block
    run.blocks[block].heap_place = place


@njit(cache=True)
def push(run: Run, worker: int, block: int) -> None:
    size = run.workers[worker].heap_size
    run.heap[run.workers[worker].heap_start + size] = block
    run.workers[worker].heap_size = size + 1
    settle(run, worker, size)


@njit(cache=True)
def pop(run: Run, worker: int) -> int:
    start = run.workers[worker].heap_start
    first = run.heap[start]
    run.workers[worker].heap_size -= 1
    size = run.workers[worker].heap_size
    run.blocks[first].heap_place = -1
    if size > 0:
        run.heap[start] = run.heap[start + size]
        settle(run, worker, 0)
    return first


@njit(cache=True)
def top(run: Run, worker: int) -> int:
    return run.heap[run.workers[worker].heap_start]


@njit(cache=True)
def lower(run: Run, a: int, b: int) -> bool:
    """Is the rank of `a` strictly lower, recency aside?"""
    if run.blocks[a].key1 != run.blocks[b].key1:
        return run.blocks[a].key1 < run.blocks[b].key1
    return run.blocks[a].key2 < run.blocks[b].key2
