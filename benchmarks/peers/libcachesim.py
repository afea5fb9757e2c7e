"""The same trace, cache size and policies in libCacheSim, through its Python package.

Its hash table has 2**24 places by default, far more than a small cache needs, and misses the processor's caches at
every request. So it is measured twice: as it comes, and with the smallest table that holds the cache (`tuned`).
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import libcachesim

PEERS = {
    "lru": libcachesim.LRU,
    "fifo": libcachesim.FIFO,
    "belady": libcachesim.Belady,
}
DEFAULT_HASH_BITS = 24


@dataclass(frozen=True, slots=True)
class PeerRun:
    """What one replay said and took; `whole_cpu_s` includes opening the file and making the cache."""

    miss_share: float
    replay_cpu_s: float
    whole_cpu_s: float


def run_peer(policy: str, path: Path, cache_size: int, *, tuned: bool, num_repeats: int) -> PeerRun:
    """The best of several replays of an oracleGeneral file."""
    hash_bits = cache_size.bit_length() + 1 if tuned else DEFAULT_HASH_BITS
    runs = [_run_once(PEERS[policy], path, cache_size, hash_bits) for _ in range(num_repeats)]
    fastest_s = min(run.replay_cpu_s for run in runs)
    return PeerRun(runs[0].miss_share, fastest_s, min(run.whole_cpu_s for run in runs))


def version() -> str:
    return str(libcachesim.__version__)


def _run_once(make: Any, path: Path, cache_size: int, hash_bits: int) -> PeerRun:
    began_s = time.process_time()
    reader = libcachesim.TraceReader(str(path), libcachesim.TraceType.ORACLE_GENERAL_TRACE)
    cache = make(cache_size=cache_size, hashpower=hash_bits)
    ready_s = time.process_time()
    miss_share, _ = cache.process_trace(reader)
    ended_s = time.process_time()
    return PeerRun(miss_share, ended_s - ready_s, ended_s - began_s)
