"""Replay a flat trace under any policy at tens of millions of requests per second.

On a flat trace every request is the only input of one consumer. So LERC counts what LRC counts, and MRD, `next` and MIN
all look at the next request: the names share a kernel.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from takeup.caching.model import FlatTrace
from takeup.caching.policies.fast.flat_belady import next_requests, replay_belady
from takeup.caching.policies.fast.flat_queues import Counts, replay_fifo, replay_lru, replay_s3fifo, replay_sieve
from takeup.caching.policies.fast.flat_ranks import replay_by_count, replay_gdsf, replay_gdsf_units
from takeup.caching.policies.s3fifo import queue_bytes
from takeup.errors import BadInput, UnknownName

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
