"""The stored blocks of one worker as an indexed binary heap: the next victim is on top.

Blocks are ordered by (key1, key2, last use); each stores its index, so that it can be sifted when its keys change.
"""

from __future__ import annotations

from takeup.caching.policies.fast.layout import ReplayState
from takeup.core.compiled import inlined


@inlined
def _before(run: ReplayState, a: int, b: int) -> bool:
    """Whether block `a` is evicted before block `b`."""
    if run.blocks[a].key1 != run.blocks[b].key1:
        return run.blocks[a].key1 < run.blocks[b].key1
    if run.blocks[a].key2 != run.blocks[b].key2:
        return run.blocks[a].key2 < run.blocks[b].key2
    return run.blocks[a].last_used < run.blocks[b].last_used


@inlined
def sift(run: ReplayState, worker: int, place: int) -> None:
    """Move the block at `place` up or down to where it belongs."""
    start, size = run.workers[worker].heap_start, run.workers[worker].heap_size
    block = run.scratch[start + place].heap
    while place > 0:
        above = run.scratch[start + (place - 1) // 2].heap
        if not _before(run, block, above):
            break
        run.scratch[start + place].heap = above
        run.blocks[above].heap_place = place
        place = (place - 1) // 2
    while 2 * place + 1 < size:
        child = 2 * place + 1
        if child + 1 < size and _before(run, run.scratch[start + child + 1].heap, run.scratch[start + child].heap):
            child += 1
        below = run.scratch[start + child].heap
        if not _before(run, below, block):
            break
        run.scratch[start + place].heap = below
        run.blocks[below].heap_place = place
        place = child
    run.scratch[start + place].heap = block
    run.blocks[block].heap_place = place


@inlined
def push(run: ReplayState, worker: int, block: int) -> None:
    size = run.workers[worker].heap_size
    run.scratch[run.workers[worker].heap_start + size].heap = block
    run.workers[worker].heap_size = size + 1
    sift(run, worker, size)


@inlined
def pop(run: ReplayState, worker: int) -> int:
    start = run.workers[worker].heap_start
    first = run.scratch[start].heap
    run.workers[worker].heap_size -= 1
    size = run.workers[worker].heap_size
    run.blocks[first].heap_place = -1
    if size > 0:
        run.scratch[start].heap = run.scratch[start + size].heap
        sift(run, worker, 0)
    return first


@inlined
def top(run: ReplayState, worker: int) -> int:
    return run.scratch[run.workers[worker].heap_start].heap


@inlined
def has_lower_rank(run: ReplayState, a: int, b: int) -> bool:
    """Whether the rank of `a` is strictly lower, ignoring recency."""
    if run.blocks[a].key1 != run.blocks[b].key1:
        return run.blocks[a].key1 < run.blocks[b].key1
    return run.blocks[a].key2 < run.blocks[b].key2
