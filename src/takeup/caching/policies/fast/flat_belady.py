"""Compiled replay of Belady's MIN, and the next request of every request that it needs.

How it works. A cached block is at the index of its *next* request in a set of indices, one bit each. Request `now`
is a hit exactly if bit `now` is set, without a look-up of the block. The victim is the highest set bit, found over a
second level that has one bit per word of the first. Bits below `now` are never looked at again, so a hit clears
nothing. Blocks without a next request are queued in the order in which they were last read, and evicted first.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from takeup.caching.policies.fast.flat_queues import Bytes, Counts, Requests
from takeup.core.compiled import inner, kernel

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
