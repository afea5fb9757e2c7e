"""Replay a request stream under any policy, at tens of millions of requests per second; kernels of GDSF and MIN."""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from takeup.caching.model import FlatResult, FlatTrace
from takeup.caching.policies.s3fifo import queue_bytes
from takeup.caching.simulate.compiled import flat_queues as queues
from takeup.caching.simulate.compiled.flat_queues import Bytes, Counts, Requests
from takeup.core.compiled import inner, kernel
from takeup.errors import BadInput, UnknownName

# GDSF on a heap -------------------------------------------------------------------------------------------------------
#
# GDSF ranks by a real number that only grows while a block is cached. So a heap may keep stale numbers: an entry at
# the top with a stale number is sifted down with the new one, and hits never touch the heap. With unit sizes the
# numbers are whole, and lists do better.

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
        node = state[block, queues.NODE]
        rank = age + 1 + (state[block, queues.RANK] if node else 0)
        while highest < rank:
            highest += 1
            links[highest, queues.NEXT], links[highest, queues.PREVIOUS] = highest, highest
        if node:
            num_hits += 1
            queues.unlink(links, node)
        elif num_cached < capacity:
            node = np.uint32(num_ranks + num_cached)
            num_cached += 1
        else:
            while lowest <= rank and links[lowest, queues.NEXT] == lowest:
                lowest += 1
            age = min(lowest, rank)
            if lowest > rank:
                continue
            node = links[lowest, queues.NEXT]
            queues.unlink(links, node)
            victim = owner[node - num_ranks]
            state[victim, queues.NODE], state[victim, queues.RANK] = 0, 0
            num_evictions += 1
        owner[node - num_ranks] = block
        state[block, queues.NODE] = node
        state[block, queues.RANK] += 1
        queues.append(links, rank, node)
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
    requests: Requests, block_bytes: Bytes, capacity_bytes: int, admission: bool, following: npt.NDArray[np.int32]
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


# Replay a flat trace under any policy at tens of millions of requests per second --------------------------------------
#
# On a flat trace every request is the only input of one consumer. So LERC counts what LRC counts, and MRD, `next` and
# MIN all look at the next request: the names share a kernel.


FLAT_KERNELS: dict[str, Callable[..., Counts]] = {
    "lru": queues.replay_lru,
    "spark": queues.replay_lru,
    "fifo": queues.replay_fifo,
    "lfu": queues.replay_by_count,
    "sieve": queues.replay_sieve,
    "s3fifo": queues.replay_s3fifo,
    "gdsf": replay_gdsf,
    "lrc": queues.replay_by_count,
    "lerc": queues.replay_by_count,
    "mrd": replay_belady,
    "next": replay_belady,
    "min": replay_belady,
}
MAX_REQUESTS = 2**31 - 1  # kernels keep indices of requests in 32 bits
CAN_REFUSE = ("lrc", "lerc", "mrd", "next", "min")


def replay_flat(policy: str, trace: FlatTrace, capacity_bytes: int, admission: bool = False) -> FlatResult:
    """Serve every request of the trace in order, from a cache of this size under this policy."""
    if policy not in FLAT_KERNELS:
        raise UnknownName("flat-trace policy", policy, FLAT_KERNELS)
    if capacity_bytes <= 0:
        raise BadInput(f"a cache of {capacity_bytes} bytes holds nothing; give a capacity above zero")
    if len(trace.requests) > MAX_REQUESTS:
        raise BadInput(f"{len(trace.requests)} requests are more than {MAX_REQUESTS}; replay the trace in parts")
    if admission and policy not in CAN_REFUSE:
        raise BadInput(f"{policy} admits every block; leave admission off, or choose one of {', '.join(CAN_REFUSE)}")
    num_hits, num_evictions, read_bytes = _replay(policy, trace, capacity_bytes, admission)
    return FlatResult(policy, capacity_bytes, len(trace.requests), num_hits, num_evictions, read_bytes)


def _replay(policy: str, trace: FlatTrace, capacity_bytes: int, admission: bool) -> Counts:
    """Call the kernel; unsigned ids avoid a check for negative indices at every look-up."""
    requests = trace.requests.view(np.uint32)
    if policy == "gdsf" and (trace.block_bytes == 1).all():
        units: Counts = replay_gdsf_units(requests, trace.num_blocks, capacity_bytes)
        return units
    more = _more_arguments(policy, trace, capacity_bytes, admission)
    return FLAT_KERNELS[policy](requests, trace.block_bytes, capacity_bytes, *more)


def _more_arguments(policy: str, trace: FlatTrace, capacity_bytes: int, admission: bool) -> tuple[object, ...]:
    match policy:
        case "lfu":
            return False, True
        case "lrc" | "lerc":
            return admission, False
        case "s3fifo":
            return queue_bytes(capacity_bytes)
        case "mrd" | "next" | "min":
            return admission, next_requests(trace.requests)
    return ()
