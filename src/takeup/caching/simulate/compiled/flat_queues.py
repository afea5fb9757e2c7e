"""Compiled replays of the policies that keep queues or lists, and the miss curve of LRU for all cache sizes.

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

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from takeup.caching.model import FlatTrace
from takeup.core.arrays import Ints
from takeup.core.compiled import inner, kernel
from takeup.errors import BadInput

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


# LFU and LRC on bucket queues: they rank by a number of requests ------------------------------------------------------
#
# How it works. LFU ranks by past requests and LRC by future ones: whole numbers that change by one at every request,
# with ties to the least recent. So there is one list per rank, and a request moves the block to the end of the
# neighbouring list: the first block of the lowest list is the victim, and no step depends on the size of the cache. A
# list is a ring through a sentinel, the node whose index is the rank. Other nodes are allocated to blocks while they
# are cached, and reused, so that all links in use stay close together in memory.

Links = npt.NDArray[np.uint32]
NEXT, PREVIOUS = 0, 1  # columns of the links
NODE, RANK = 0, 1  # columns of the state of a block; node 0 stands for "not cached"


@inner
def unlink(links: Links, node: int) -> None:
    following, previous = links[node, NEXT], links[node, PREVIOUS]
    links[previous, NEXT] = following
    links[following, PREVIOUS] = previous


@inner
def append(links: Links, rank: int, node: int) -> None:
    last = links[rank, PREVIOUS]
    links[node, NEXT] = rank
    links[node, PREVIOUS] = last
    links[last, NEXT] = node
    links[rank, PREVIOUS] = node


@inner
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


@inner
def _empty_lists(num_ranks: int, num_nodes: int) -> Links:
    links = np.empty((num_ranks + num_nodes, 2), np.uint32)
    for sentinel in range(num_ranks):
        links[sentinel, NEXT], links[sentinel, PREVIOUS] = sentinel, sentinel
    return links


@kernel
def replay_by_count(
    requests: Requests, block_bytes: Bytes, capacity_bytes: int, admission: bool, counts_past: bool
) -> Counts:
    """The fewest requests are evicted first: past ones since the block was stored (LFU), or those still to come (LRC).

    With admission, a block may evict only blocks of strictly lower rank, or of rank 0.
    """
    num_blocks = len(block_bytes)
    state = np.zeros((num_blocks, 2), np.uint32)
    for block in requests:
        state[block, RANK] += 1
    num_ranks = 1 + (state[:, RANK].max() if num_blocks else 0)
    if counts_past:
        state[:, RANK] = 0
    step = 1 if counts_past else -1
    links, lowest = _empty_lists(num_ranks, num_blocks), 0
    owner = np.empty(num_blocks, np.uint32)  # the block that a node is allocated to
    spare, num_spare = np.arange(num_ranks + num_blocks - 1, num_ranks - 1, -1).astype(np.uint32), num_blocks
    num_hits, num_evictions, read_bytes, free_bytes = 0, 0, 0, capacity_bytes
    for block in requests:
        rank = state[block, RANK] + step
        state[block, RANK] = rank
        node = state[block, NODE]
        if node:
            num_hits += 1
            unlink(links, node)
        else:
            size_bytes = block_bytes[block]
            read_bytes += size_bytes
            missing_bytes = size_bytes - free_bytes
            if size_bytes > capacity_bytes:
                continue
            if admission and missing_bytes > 0:
                limit = max(rank, 1)
                if _lower_bytes(links, num_ranks, owner, block_bytes, lowest, limit, missing_bytes) < missing_bytes:
                    continue
            while free_bytes < size_bytes:
                node = links[lowest, NEXT]
                if node < num_ranks:
                    lowest += 1
                    continue
                unlink(links, node)
                spare[num_spare] = node
                num_spare += 1
                victim = owner[node - num_ranks]
                state[victim, NODE] = 0
                if counts_past:
                    state[victim, RANK] = 0
                free_bytes += block_bytes[victim]
                num_evictions += 1
            free_bytes -= size_bytes
            num_spare -= 1
            node = spare[num_spare]
            owner[node - num_ranks] = block
            state[block, NODE] = node
        append(links, rank, node)
        lowest = min(lowest, rank)
    return num_hits, num_evictions, read_bytes


# The miss ratio of LRU for every cache size at once, in one pass over the trace ---------------------------------------
#
# How it works. LRU keeps the most recent blocks, so a request hits exactly in the caches that are larger than the
# number of *other* blocks requested since the last request of the same block: its stack distance (Mattson et al., IBM
# Systems Journal 1970). To count them, every block has one bit at the time of its last request, and the distance is
# the number of bits after it. Bits are counted 64 at a time, and a Fenwick tree sums the words before: it fits into
# the L1 cache. When the time indices run out, the bits are compacted and time continues after them.

Words = npt.NDArray[np.uint64]


@dataclass(frozen=True, slots=True)
class MissCurve:
    """`num_misses[size]` for a cache of `size` blocks, from none to all."""

    num_requests: int
    num_misses: Ints

    @property
    def miss_share(self) -> npt.NDArray[np.float64]:
        return self.num_misses / max(1, self.num_requests)


def lru_miss_curve(trace: FlatTrace) -> MissCurve:
    """How many requests miss under LRU, by cache size in blocks. Sizes must all be equal."""
    if trace.num_blocks and trace.block_bytes.min() != trace.block_bytes.max():
        least, most = trace.block_bytes.min(), trace.block_bytes.max()
        raise BadInput(f"blocks of {least} to {most} bytes have no curve by number; pass --ignore-sizes")
    num_at_distance = _stack_distances(trace.requests.view(np.uint32), trace.num_blocks)
    num_requests = len(trace.requests)
    return MissCurve(num_requests, num_requests - np.concatenate(([0], np.cumsum(num_at_distance))))


@inner
def _num_bits(word: np.uint64) -> int:
    word -= (word >> np.uint64(1)) & np.uint64(0x5555555555555555)
    word = (word & np.uint64(0x3333333333333333)) + ((word >> np.uint64(2)) & np.uint64(0x3333333333333333))
    word = (word + (word >> np.uint64(4))) & np.uint64(0x0F0F0F0F0F0F0F0F)
    return int(np.int64((word * np.uint64(0x0101010101010101)) >> np.uint64(56)))


@inner
def _add(tree: npt.NDArray[np.int32], word: int, change: int) -> None:
    node = word + 1
    while node < len(tree):
        tree[node] += change
        node += node & -node


@inner
def _num_before(tree: npt.NDArray[np.int32], word: int) -> int:
    """The sum over all words before this one."""
    total = 0
    while word > 0:
        total += tree[word]
        word &= word - 1
    return total


@inner
def _move_together(
    words: Words, tree: npt.NDArray[np.int32], block_at: Requests, last_time: npt.NDArray[np.int32], end: int
) -> int:
    """Renumber the times of last requests from 0, in the same order; returns the first free time."""
    now = 0
    for time in range(end):
        block = block_at[time]
        if last_time[block] == time:
            last_time[block] = now
            block_at[now] = block
            now += 1
    words[:] = 0
    tree[:] = 0
    for time in range(now):
        words[time >> 6] |= np.uint64(1) << np.uint64(time & 63)
    for word in range((now + 63) >> 6):
        _add(tree, word, _num_bits(words[word]))
    return now


@kernel
def _stack_distances(requests: Requests, num_blocks: int) -> Ints:
    """How many requests have each distance; a first request has none."""
    num_times = 2 * num_blocks + 64
    words = np.zeros((num_times >> 6) + 1, np.uint64)
    tree = np.zeros(len(words) + 1, np.int32)
    block_at = np.empty(num_times, np.uint32)
    last_time = np.full(num_blocks, -1, np.int32)
    num_at_distance = np.zeros(num_blocks, np.int64)
    num_seen, now = 0, 0
    for block in requests:
        if now == num_times:
            now = _move_together(words, tree, block_at, last_time, now)
        time = last_time[block]
        if time < 0:
            num_seen += 1
        else:
            index, bit = time >> 6, np.uint64(time & 63)
            upto = words[index] & ((np.uint64(2) << bit) - np.uint64(1))
            num_at_distance[num_seen - _num_before(tree, index) - _num_bits(upto)] += 1
            words[index] &= ~(np.uint64(1) << bit)
            _add(tree, index, -1)
        words[now >> 6] |= np.uint64(1) << np.uint64(now & 63)
        _add(tree, now >> 6, 1)
        last_time[block] = now
        block_at[now] = block
        now += 1
    return num_at_distance
