"""Compiled replays of the policies that keep queues: LRU, FIFO, SIEVE and S3-FIFO.

How it works. A hit must cost one look-up in one small array, so none of these keeps linked lists:

LRU      The trace is the queue. A cached block is at the index of its last request, so a hit writes one number;
         looking for a victim walks the trace from the oldest index and skips those that are no longer a last request.
FIFO     A ring buffer of blocks in the order of arrival; a hit changes nothing.
SIEVE    One array, oldest first. The hand scans towards newer blocks and compacts the survivors behind itself,
         so the array stays dense; at the end it starts over.
S3-FIFO  Two rings, and a ghost that is a log of blocks in the order of eviction from the small queue. A block's
         index in the log tells whether its entry is still valid.

Every kernel returns (hits, evictions, bytes of missed blocks). Sizes are read on a miss only. Kernels keep their
counters in local variables: in an array, or handed over to a function in a tuple, they cost half the speed or more.
"""

import numpy as np
import numpy.typing as npt

from takeup.core.compiled import inner, kernel

Requests = npt.NDArray[np.uint32]  # unsigned spares a check for negative indices at every look-up
Bytes = npt.NDArray[np.int64]
Counts = tuple[int, int, int]


@kernel
def replay_lru(requests: Requests, block_bytes: Bytes, capacity_bytes: int) -> Counts:
    """The least recently used block is evicted first."""
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


@inner
def _after(place: int, length: int) -> int:
    """The next index in a ring buffer."""
    return place + 1 if place + 1 < length else 0


@kernel
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
            victim, head = queue[head], _after(head, len(queue))
            cached[victim] = 0
            free_bytes += block_bytes[victim]
            num_evictions += 1
        free_bytes -= size_bytes
        cached[block] = 1
        queue[tail], tail = block, _after(tail, len(queue))
    return num_hits, num_evictions, read_bytes


@kernel
def replay_sieve(requests: Requests, block_bytes: Bytes, capacity_bytes: int) -> Counts:
    """The hand skips blocks that were read since its last pass, and evicts the first that was not."""
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
        if hand == end:  # the next pass begins at the oldest block, not at the incoming one
            end, kept, hand = kept, 0, 0
        elif end == len(queue):
            queue[kept : kept + end - hand] = queue[hand:end].copy()
            hand, end = kept, kept + end - hand
        state[block] = 1
        queue[end] = block
        end += 1
    return num_hits, num_evictions, read_bytes


IN_SMALL, IN_MAIN = 4, 8  # the state of a cached block is one of these plus its reads, of which three count
READS, MAX_READS = 3, 3  # READS masks the reads out of the state


@kernel
def replay_s3fifo(
    requests: Requests, block_bytes: Bytes, capacity_bytes: int, small_bytes: int, ghost_bytes: int
) -> Counts:
    """New blocks enter a small queue; see `policies/s3fifo.py` for the rules."""
    num_blocks = len(block_bytes)
    state = np.zeros(num_blocks, np.uint8)  # 0: not cached
    small, small_head, small_tail, small_used = np.empty(num_blocks, np.uint32), 0, 0, 0
    main, main_head, main_tail, main_used = np.empty(num_blocks, np.uint32), 0, 0, 0
    ghost, ghost_head, ghost_tail, ghost_used = np.empty(len(requests), np.uint32), 0, 0, 0
    ghost_place = np.full(num_blocks, -1, np.int32)  # -1: not remembered
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
        walks_small = False  # until a block leaves it, whatever main gains by that
        while small_used + main_used + size_bytes > capacity_bytes:
            if small_used == 0 or (main_used > capacity_bytes - small_bytes and not walks_small):
                victim, main_head = main[main_head], _after(main_head, num_blocks)
                if state[victim] & READS:
                    state[victim] -= 1
                    main[main_tail], main_tail = victim, _after(main_tail, num_blocks)
                else:
                    state[victim] = 0
                    main_used -= block_bytes[victim]
                    num_evictions += 1
                continue
            victim, small_head = small[small_head], _after(small_head, num_blocks)
            victim_bytes = block_bytes[victim]
            small_used -= victim_bytes
            walks_small = state[victim] & READS >= 2
            if walks_small:
                state[victim] = IN_MAIN
                main[main_tail], main_tail = victim, _after(main_tail, num_blocks)
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
            state[block] = IN_MAIN
            main[main_tail], main_tail = block, _after(main_tail, num_blocks)
            main_used += size_bytes
        else:
            state[block] = IN_SMALL
            small[small_tail], small_tail = block, _after(small_tail, num_blocks)
            small_used += size_bytes
    return num_hits, num_evictions, read_bytes
