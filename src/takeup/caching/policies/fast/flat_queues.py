"""Compiled replays of the policies that keep queues: LRU, FIFO, SIEVE and S3-FIFO.

How it works. A hit must cost one look at one small array, so none of these keeps linked lists:

LRU      The trace is the queue. A cached block stands at the index of its last request, so a hit writes one number;
         looking for a victim walks the trace from the oldest index and skips those that are no longer a last request.
FIFO     A ring of blocks in the order of arrival; a hit changes nothing.
SIEVE    One array, oldest first. The hand walks towards newer blocks and moves the survivors together behind itself,
         so the array stays dense; at the end it starts over.
S3-FIFO  Two rings, and a ghost that is a log of blocks in the order in which they left the small queue. A block's
         place in the log tells whether its entry still counts.

Every kernel answers (hits, evictions, bytes of missed blocks). Sizes are looked at on a miss only.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from numba import njit

__all__ = ["Bytes", "Counts", "Requests", "replay_fifo", "replay_lru", "replay_s3fifo", "replay_sieve"]

Requests = npt.NDArray[np.uint32]  # unsigned spares a check for negative indices at every look-up
Bytes = npt.NDArray[np.int64]
Counts = tuple[int, int, int]

SMALL, MAIN = 4, 8  # S3-FIFO: the state of a block is the queue plus its reads so far, of which three count
MAX_READS, READS = 3, 3  # READS masks the reads out of the state


@njit(cache=True)
def replay_lru(requests: Requests, block_bytes: Bytes, capacity_bytes: int) -> Counts:
    """Least recently used leaves first."""
    last_request = np.full(len(block_bytes), -1, np.int32)  # -1: not cached
    oldest = 0
    num_hits, num_evictions, read_bytes, free_bytes = 0, 0, 0, capacity_bytes
    for now in range(len(requests)):
        block = requests[now]
        if last_request[block] >= 0:
            num_hits += 1
        else:
            size_bytes = block_bytes[block]
            read_bytes += size_bytes
            if size_bytes > capacity_bytes:
                continue
            while free_bytes < size_bytes:
                victim = requests[oldest]
                if last_request[victim] == oldest:
                    last_request[victim] = -1
                    free_bytes += block_bytes[victim]
                    num_evictions += 1
                oldest += 1
            free_bytes -= size_bytes
        last_request[block] = now
    return num_hits, num_evictions, read_bytes


@njit(cache=True)
def replay_fifo(requests: Requests, block_bytes: Bytes, capacity_bytes: int) -> Counts:
    """First in, first out."""
    cached = np.zeros(len(block_bytes), np.uint8)
    queue = np.empty(len(block_bytes), np.uint32)
    head, tail = 0, 0
    num_hits, num_evictions, read_bytes, free_bytes = 0, 0, 0, capacity_bytes
    for block in requests:
        if cached[block]:
            num_hits += 1
            continue
        size_bytes = block_bytes[block]
        read_bytes += size_bytes
        if size_bytes > capacity_bytes:
            continue
        while free_bytes < size_bytes:
            victim = queue[head]
            head = head + 1 if head + 1 < len(queue) else 0
            cached[victim] = 0
            free_bytes += block_bytes[victim]
            num_evictions += 1
        free_bytes -= size_bytes
        cached[block] = 1
        queue[tail] = block
        tail = tail + 1 if tail + 1 < len(queue) else 0
    return num_hits, num_evictions, read_bytes


@njit(cache=True)
def replay_sieve(requests: Requests, block_bytes: Bytes, capacity_bytes: int) -> Counts:
    """The hand passes over blocks that were read since it last came, and takes the first that was not."""
    state = np.zeros(len(block_bytes), np.uint8)  # 0: not cached, 1: cached, 2: cached and read
    queue = np.empty(2 * len(block_bytes) + 1, np.uint32)  # survivors in [0, kept), a gap, then [hand, end)
    kept, hand, end = 0, 0, 0
    num_hits, num_evictions, read_bytes, free_bytes = 0, 0, 0, capacity_bytes
    for block in requests:
        if state[block]:
            state[block] = 2
            num_hits += 1
            continue
        size_bytes = block_bytes[block]
        read_bytes += size_bytes
        if size_bytes > capacity_bytes:
            continue
        while free_bytes < size_bytes:
            if hand == end:
                end, kept, hand = kept, 0, 0
            victim = queue[hand]
            hand += 1
            if state[victim] == 2:
                state[victim] = 1
                queue[kept] = victim
                kept += 1
            else:
                state[victim] = 0
                free_bytes += block_bytes[victim]
                num_evictions += 1
        free_bytes -= size_bytes
        if hand == end:  # the next round begins at the oldest, not at the block that comes in now
            end, kept, hand = kept, 0, 0
        elif end == len(queue):
            queue[kept : kept + end - hand] = queue[hand:end].copy()
            hand, end = kept, kept + end - hand
        state[block] = 1
        queue[end] = block
        end += 1
    return num_hits, num_evictions, read_bytes


@njit(cache=True)
def replay_s3fifo(
    requests: Requests, block_bytes: Bytes, capacity_bytes: int, small_bytes: int, ghost_bytes: int
) -> Counts:
    """New blocks prove themselves in a small queue; see `policies/s3fifo.py` for the rules."""
    num_blocks, main_bytes = len(block_bytes), capacity_bytes - small_bytes
    state = np.zeros(num_blocks, np.uint8)  # 0: not cached, else queue plus reads
    small, small_head, small_tail, small_used = np.empty(num_blocks, np.uint32), 0, 0, 0
    main, main_head, main_tail, main_used = np.empty(num_blocks, np.uint32), 0, 0, 0
    ghost, ghost_head, ghost_tail, ghost_used = np.empty(len(requests), np.uint32), 0, 0, 0
    ghost_place = np.full(num_blocks, -1, np.int32)
    num_hits, num_evictions, read_bytes = 0, 0, 0
    for block in requests:
        if state[block]:
            state[block] += (state[block] & READS) < MAX_READS
            num_hits += 1
            continue
        size_bytes = block_bytes[block]
        read_bytes += size_bytes
        if size_bytes > capacity_bytes:
            continue
        returns = ghost_place[block] >= 0
        if returns:
            ghost_place[block] = -1
            ghost_used -= size_bytes
        while small_used + main_used + size_bytes > capacity_bytes:
            if main_used > main_bytes or small_used == 0:
                victim = main[main_head]
                main_head = main_head + 1 if main_head + 1 < num_blocks else 0
                if state[victim] & READS:
                    state[victim] -= 1
                    main[main_tail] = victim
                    main_tail = main_tail + 1 if main_tail + 1 < num_blocks else 0
                else:
                    state[victim] = 0
                    main_used -= block_bytes[victim]
                    num_evictions += 1
                continue
            victim = small[small_head]
            victim_bytes = block_bytes[victim]
            small_head = small_head + 1 if small_head + 1 < num_blocks else 0
            small_used -= victim_bytes
            if state[victim] & READS >= 2:
                state[victim] = MAIN
                main[main_tail] = victim
                main_tail = main_tail + 1 if main_tail + 1 < num_blocks else 0
                main_used += victim_bytes
                continue
            state[victim] = 0
            num_evictions += 1
            if victim_bytes > ghost_bytes:
                continue
            while ghost_used + victim_bytes > ghost_bytes:
                oldest = ghost[ghost_head]
                if ghost_place[oldest] == ghost_head:
                    ghost_place[oldest] = -1
                    ghost_used -= block_bytes[oldest]
                ghost_head += 1
            ghost_place[victim] = ghost_tail
            ghost[ghost_tail] = victim
            ghost_tail += 1
            ghost_used += victim_bytes
        if returns or (num_evictions == 0 and small_used >= small_bytes):
            state[block] = MAIN
            main[main_tail] = block
            main_tail = main_tail + 1 if main_tail + 1 < num_blocks else 0
            main_used += size_bytes
        else:
            state[block] = SMALL
            small[small_tail] = block
            small_tail = small_tail + 1 if small_tail + 1 < num_blocks else 0
            small_used += size_bytes
    return num_hits, num_evictions, read_bytes
