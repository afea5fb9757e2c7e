"""The miss ratio of LRU for every cache size at once, in one pass over the trace.

How it works. LRU keeps the most recent blocks, so a request hits exactly in the caches that are larger than the number
of *other* blocks requested since the last request of the same block: its stack distance (Mattson et al., IBM Systems
Journal 1970). To count them, every block has one bit at the time of its last request, and the distance is the number
of bits after it. Bits are counted 64 at a time, and a Fenwick tree sums the words before: it fits into the L1 cache.
When the time indices run out, the bits are compacted and time continues after them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from takeup.caching.model import FlatTrace
from takeup.core.arrays import Ints
from takeup.core.compiled import inner, kernel
from takeup.errors import BadInput

Requests = npt.NDArray[np.uint32]
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
        raise BadInput(f"blocks of {least} to {most} bytes have no curve by number; give a trace of equal sizes")
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
