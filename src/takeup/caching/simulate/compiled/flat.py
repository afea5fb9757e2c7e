"""Request streams: replay one under any policy, or compute the miss curve of LRU for all cache sizes."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from takeup.caching.model import FlatTrace
from takeup.caching.policies.s3fifo import queue_bytes
from takeup.caching.simulate.compiled.flat_queues import Counts, replay_fifo, replay_lru, replay_s3fifo, replay_sieve
from takeup.caching.simulate.compiled.flat_ranks import (
    next_requests,
    replay_belady,
    replay_by_count,
    replay_gdsf,
    replay_gdsf_units,
)
from takeup.core.arrays import Ints
from takeup.core.compiled import inner, kernel
from takeup.errors import BadInput, UnknownName

# The miss ratio of LRU for every cache size at once, in one pass over the trace ---------------------------------------
#
# How it works. LRU keeps the most recent blocks, so a request hits exactly in the caches that are larger than the
# number of *other* blocks requested since the last request of the same block: its stack distance (Mattson et al., IBM
# Systems Journal 1970). To count them, every block has one bit at the time of its last request, and the distance is
# the number of bits after it. Bits are counted 64 at a time, and a Fenwick tree sums the words before: it fits into
# the L1 cache. When the time indices run out, the bits are compacted and time continues after them.

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


# Replay a flat trace under any policy at tens of millions of requests per second --------------------------------------
#
# On a flat trace every request is the only input of one consumer. So LERC counts what LRC counts, and MRD, `next` and
# MIN all look at the next request: the names share a kernel.

FlatKernel = Callable[[FlatTrace, int, bool], Counts]


@dataclass(frozen=True, slots=True)
class FlatCounts:
    """What one replay did; `read_bytes` are the bytes of the blocks that were missed."""

    num_requests: int
    num_hits: int
    num_evictions: int
    read_bytes: int

    @property
    def num_misses(self) -> int:
        return self.num_requests - self.num_hits

    @property
    def hit_share(self) -> float:
        return self.num_hits / max(1, self.num_requests)


def _replay(kernel: Callable[..., Counts], trace: FlatTrace, *arguments: object) -> Counts:
    """Dispatch to the kernel; unsigned ids avoid a check for negative indices at every look-up."""
    return kernel(trace.requests.view(np.uint32), trace.block_bytes, *arguments)


def _lru(trace: FlatTrace, capacity_bytes: int, admission: bool) -> Counts:
    return _replay(replay_lru, trace, capacity_bytes)


def _fifo(trace: FlatTrace, capacity_bytes: int, admission: bool) -> Counts:
    return _replay(replay_fifo, trace, capacity_bytes)


def _lfu(trace: FlatTrace, capacity_bytes: int, admission: bool) -> Counts:
    return _replay(replay_by_count, trace, capacity_bytes, False, True)


def _sieve(trace: FlatTrace, capacity_bytes: int, admission: bool) -> Counts:
    return _replay(replay_sieve, trace, capacity_bytes)


def _s3fifo(trace: FlatTrace, capacity_bytes: int, admission: bool) -> Counts:
    return _replay(replay_s3fifo, trace, capacity_bytes, *queue_bytes(capacity_bytes))


def _gdsf(trace: FlatTrace, capacity_bytes: int, admission: bool) -> Counts:
    if (trace.block_bytes == 1).all():
        counts: Counts = replay_gdsf_units(trace.requests.view(np.uint32), trace.num_blocks, capacity_bytes)
        return counts
    return _replay(replay_gdsf, trace, capacity_bytes)


def _lrc(trace: FlatTrace, capacity_bytes: int, admission: bool) -> Counts:
    return _replay(replay_by_count, trace, capacity_bytes, admission, False)


def _min(trace: FlatTrace, capacity_bytes: int, admission: bool) -> Counts:
    return _replay(replay_belady, trace, capacity_bytes, admission, next_requests(trace.requests))


FLAT_KERNELS: dict[str, FlatKernel] = {
    "lru": _lru,
    "fifo": _fifo,
    "lfu": _lfu,
    "sieve": _sieve,
    "s3fifo": _s3fifo,
    "gdsf": _gdsf,
    "lrc": _lrc,
    "lerc": _lrc,
    "mrd": _min,
    "next": _min,
    "min": _min,
}
MAX_REQUESTS = 2**31 - 1  # kernels keep indices of requests in 32 bits
CAN_REFUSE = ("lrc", "lerc", "mrd", "next", "min")


def replay_flat(policy: str, trace: FlatTrace, capacity_bytes: int, admission: bool = False) -> FlatCounts:
    """Serve every request of the trace in order, from a cache of this size under this policy."""
    if policy not in FLAT_KERNELS:
        raise UnknownName("flat-trace policy", policy, FLAT_KERNELS)
    if capacity_bytes <= 0:
        raise BadInput(f"a cache of {capacity_bytes} bytes holds nothing; give a capacity above zero")
    if len(trace.requests) > MAX_REQUESTS:
        raise BadInput(f"{len(trace.requests)} requests are more than {MAX_REQUESTS}; replay the trace in parts")
    if admission and policy not in CAN_REFUSE:
        raise BadInput(f"{policy} admits every block; leave admission off, or choose one of {', '.join(CAN_REFUSE)}")
    num_hits, num_evictions, read_bytes = FLAT_KERNELS[policy](trace, capacity_bytes, admission)
    return FlatCounts(len(trace.requests), num_hits, num_evictions, read_bytes)
