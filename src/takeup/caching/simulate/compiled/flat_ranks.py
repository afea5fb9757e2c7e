"""Compiled replays of the policies that rank by a number: LFU, LRC, GDSF and Belady's MIN."""

import numpy as np
import numpy.typing as npt

from takeup.caching.simulate.compiled.flat_queues import Bytes, Counts, Requests
from takeup.core.compiled import inner, kernel

# Compiled replays of the policies that rank by a number: LFU and LRC on bucket queues, GDSF on a heap -----------------
#
# How it works. LFU ranks by past requests and LRC by future ones: whole numbers that change by one at every request,
# with ties to the least recent. So there is one list per rank, and a request moves the block to the end of the
# neighbouring list: the first block of the lowest list is the victim, and no step depends on the size of the cache. A
# list is a ring through a sentinel, the node whose index is the rank. Other nodes are allocated to blocks while they
# are cached, and reused, so that all links in use stay close together in memory.
#
# GDSF ranks by a real number that only grows while a block is cached. So a heap may keep stale numbers: an entry at
# the top with a stale number is sifted down with the new one, and hits never touch the heap. With unit sizes the
# numbers are whole, and lists do better.

Links = npt.NDArray[np.uint32]
NEXT, PREVIOUS = 0, 1  # columns of the links
NODE, RANK = 0, 1  # columns of the state of a block; node 0 stands for "not cached"


@inner
def _unlink(links: Links, node: int) -> None:
    following, previous = links[node, NEXT], links[node, PREVIOUS]
    links[previous, NEXT] = following
    links[following, PREVIOUS] = previous


@inner
def _append(links: Links, rank: int, node: int) -> None:
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
            _unlink(links, node)
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
                _unlink(links, node)
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
        _append(links, rank, node)
        lowest = min(lowest, rank)
    return num_hits, num_evictions, read_bytes


Heap = npt.NDArray[np.float64]  # rows of priority and index of the last request, which also tells the block


@inner
def _is_before(heap: Heap, left: int, right: int) -> bool:
    """Without a branch: which of two children is smaller cannot be predicted."""
    is_lower = heap[left, 0] < heap[right, 0]
    is_equal = heap[left, 0] == heap[right, 0]
    return is_lower | (is_equal & (heap[left, 1] < heap[right, 1]))


@inner
def _rise(heap: Heap, place: int, priority: float, touched: float) -> None:
    """Sift up: put an entry into `place`, or further up while it is smaller than its parent."""
    while place > 0:
        parent = (place - 1) >> 1
        if heap[parent, 0] < priority or (heap[parent, 0] == priority and heap[parent, 1] < touched):
            break
        heap[place, 0], heap[place, 1] = heap[parent, 0], heap[parent, 1]
        place = parent
    heap[place, 0], heap[place, 1] = priority, touched


@inner
def _replace_top(heap: Heap, length: int, priority: float, touched: float) -> None:
    """Replace the top entry. It usually belongs near the bottom: go there first, then back up."""
    place, child = 0, 1
    while child + 1 < length:
        child += _is_before(heap, child + 1, child)
        heap[place, 0], heap[place, 1] = heap[child, 0], heap[child, 1]
        place = child
        child = 2 * place + 1
    if child < length:
        heap[place, 0], heap[place, 1] = heap[child, 0], heap[child, 1]
        place = child
    _rise(heap, place, priority, touched)


@inner
def _refresh_top(heap: Heap, length: int, requests: Requests, touched: Bytes, priority: Heap) -> None:
    """Sift down entries with a stale priority until the top one is current."""
    block = requests[np.uint64(heap[0, 1])]
    while touched[block] != heap[0, 1]:
        _replace_top(heap, length, priority[block], touched[block])
        block = requests[np.uint64(heap[0, 1])]


@kernel
def replay_gdsf(requests: Requests, block_bytes: Bytes, capacity_bytes: int) -> Counts:
    """The lowest priority is evicted first, the incoming block included; see `policies/gdsf.py` for the rules."""
    num_blocks = len(block_bytes)
    priority = np.empty(num_blocks, np.float64)
    touched = np.empty(num_blocks, np.int64)
    frequency = np.zeros(num_blocks, np.int64)
    victims = np.empty(num_blocks, np.uint32)
    heap = np.empty((num_blocks, 2), np.float64)
    length, age = 0, 0.0
    num_hits, num_evictions, read_bytes, free_bytes = 0, 0, 0, capacity_bytes
    for now in range(len(requests)):
        block = requests[now]
        size_bytes = block_bytes[block]
        if frequency[block]:
            num_hits += 1
            frequency[block] += 1
            priority[block] = age + frequency[block] / size_bytes
            touched[block] = now
            continue
        read_bytes += size_bytes
        if size_bytes > capacity_bytes:
            continue
        newcomer = age + 1 / size_bytes
        num_victims = 0
        while free_bytes < size_bytes:
            _refresh_top(heap, length, requests, touched, priority)
            if heap[0, 0] > newcomer:
                break
            victims[num_victims] = requests[np.uint64(heap[0, 1])]
            free_bytes += block_bytes[victims[num_victims]]
            num_victims += 1
            length -= 1
            _replace_top(heap, length, heap[length, 0], heap[length, 1])
        if free_bytes < size_bytes:  # the incoming block would be among the victims: undo
            for victim in victims[:num_victims]:
                _rise(heap, length, priority[victim], touched[victim])
                free_bytes -= block_bytes[victim]
                length += 1
            age = newcomer
            continue
        for victim in victims[:num_victims]:
            frequency[victim] = 0
            age = max(age, priority[victim])
        num_evictions += num_victims
        free_bytes -= size_bytes
        frequency[block] = 1
        priority[block] = newcomer
        touched[block] = now
        _rise(heap, length, newcomer, now)
        length += 1
    return num_hits, num_evictions, read_bytes


@kernel
def replay_gdsf_units(requests: Requests, num_blocks: int, capacity: int) -> Counts:
    """The same for blocks of size one: priorities are whole numbers, so there is a list for each, as for counts."""
    num_ranks = len(requests) + 2
    state = np.zeros((num_blocks, 2), np.uint32)  # the second column is the frequency here
    links = np.empty((num_ranks + min(capacity, num_blocks), 2), np.uint32)
    owner = np.empty(min(capacity, num_blocks), np.uint32)
    age, lowest, highest, num_cached, num_hits, num_evictions = 0, 0, -1, 0, 0, 0
    for block in requests:
        node = state[block, NODE]
        rank = age + 1 + (state[block, RANK] if node else 0)
        while highest < rank:
            highest += 1
            links[highest, NEXT], links[highest, PREVIOUS] = highest, highest
        if node:
            num_hits += 1
            _unlink(links, node)
        elif num_cached < capacity:
            node = np.uint32(num_ranks + num_cached)
            num_cached += 1
        else:
            while lowest <= rank and links[lowest, NEXT] == lowest:
                lowest += 1
            age = min(lowest, rank)
            if lowest > rank:
                continue
            node = links[lowest, NEXT]
            _unlink(links, node)
            victim = owner[node - num_ranks]
            state[victim, NODE], state[victim, RANK] = 0, 0
            num_evictions += 1
        owner[node - num_ranks] = block
        state[block, NODE] = node
        state[block, RANK] += 1
        _append(links, rank, node)
    return num_hits, num_evictions, len(requests) - num_hits


# Compiled replay of Belady's MIN, and the next request of every request that it needs ---------------------------------
#
# How it works. A cached block is at the index of its *next* request in a set of indices, one bit each. Request `now`
# is a hit exactly if bit `now` is set, without a look-up of the block. The victim is the highest set bit, found over a
# second level that has one bit per word of the first. Bits below `now` are never looked at again, so a hit clears
# nothing. Blocks without a next request are queued in the order in which they were last read, and evicted first.

NEVER = -1
Words = npt.NDArray[np.uint64]


@kernel
def _next_requests(requests: Requests, num_blocks: int) -> npt.NDArray[np.int32]:
    following = np.empty(len(requests), np.int32)
    seen = np.full(num_blocks, NEVER, np.int32)
    for now in range(len(requests) - 1, -1, -1):
        following[now] = seen[requests[now]]
        seen[requests[now]] = now
    return following


def next_requests(requests: npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
    """The index of the next request of the same block, or `NEVER`, for every request."""
    following: npt.NDArray[np.int32] = _next_requests(requests.view(np.uint32), int(requests.max(initial=-1)) + 1)
    return following


@inner
def _highest_bit(word: np.uint64) -> int:
    bit = 0
    for step in (32, 16, 8, 4, 2, 1):
        if word >> np.uint64(step):
            word >>= np.uint64(step)
            bit += step
    return bit


@inner
def _highest_below(words: Words, summary: Words, limit: int) -> int:
    """The highest set bit below `limit`. There must be one."""
    index = limit >> 6
    word = words[index] & ((np.uint64(1) << np.uint64(limit & 63)) - np.uint64(1))
    if not word:
        outer = index >> 6
        word = summary[outer] & ((np.uint64(1) << np.uint64(index & 63)) - np.uint64(1))
        while not word:
            outer -= 1
            word = summary[outer]
        index = (outer << 6) + _highest_bit(word)
        word = words[index]
    return (index << 6) + _highest_bit(word)


@inner
def _insert(words: Words, summary: Words, place: int) -> None:
    words[place >> 6] |= np.uint64(1) << np.uint64(place & 63)
    summary[place >> 12] |= np.uint64(1) << np.uint64((place >> 6) & 63)


@inner
def _remove(words: Words, summary: Words, place: int) -> None:
    words[place >> 6] &= ~(np.uint64(1) << np.uint64(place & 63))
    if not words[place >> 6]:
        summary[place >> 12] &= ~(np.uint64(1) << np.uint64((place >> 6) & 63))


@inner
def _farther_bytes(
    words: Words, summary: Words, requests: Requests, block_bytes: Bytes, top: int, nearest: int, enough_bytes: int
) -> int:
    """Bytes of blocks that are next requested after `nearest`; stops as soon as they are enough."""
    found_bytes = 0
    place = _highest_below(words, summary, top)
    while place > nearest and found_bytes < enough_bytes:
        found_bytes += block_bytes[requests[place]]
        place = _highest_below(words, summary, place)
    return found_bytes


@kernel
def replay_belady(
    requests: Requests,
    block_bytes: Bytes,
    capacity_bytes: int,
    admission: bool,
    following: npt.NDArray[np.int32],
) -> Counts:
    """The farthest next request is evicted first; with admission, only for a block that is requested earlier.

    Blocks that are never requested again may be evicted for any block.
    """
    words = np.zeros((len(requests) >> 6) + 1, np.uint64)
    summary = np.zeros((len(requests) >> 12) + 1, np.uint64)
    top = 0  # no bit is set from here on
    unused = np.empty(len(block_bytes), np.uint32)  # never requested again, in the order of their last request
    unused_head, unused_tail, unused_bytes = 0, 0, 0
    num_hits, num_evictions, read_bytes, free_bytes = 0, 0, 0, capacity_bytes
    for now in range(len(requests)):
        block, later = requests[now], following[now]
        if words[now >> 6] >> np.uint64(now & 63) & np.uint64(1):
            num_hits += 1
        else:
            size_bytes = block_bytes[block]
            read_bytes += size_bytes
            if size_bytes > capacity_bytes:
                continue
            missing_bytes = size_bytes - free_bytes - unused_bytes
            if admission and missing_bytes > 0:
                if later == NEVER:
                    continue
                _insert(words, summary, now)  # upper end of the scan
                top = max(top, now + 1)
                if _farther_bytes(words, summary, requests, block_bytes, top, later, missing_bytes) < missing_bytes:
                    continue
            while free_bytes < size_bytes:
                if unused_head < unused_tail:
                    victim = unused[unused_head]
                    unused_head += 1
                    unused_bytes -= block_bytes[victim]
                else:
                    top = _highest_below(words, summary, top)
                    _remove(words, summary, top)
                    victim = requests[top]
                free_bytes += block_bytes[victim]
                num_evictions += 1
            free_bytes -= size_bytes
        if later == NEVER:
            unused[unused_tail] = block
            unused_tail += 1
            unused_bytes += block_bytes[block]
        else:
            _insert(words, summary, later)
            top = max(top, later + 1)
    return num_hits, num_evictions, read_bytes
