"""The same misses as libCacheSim, request streams of unit size, for every policy both have."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from takeup.caching.model import FlatTrace
from takeup.caching.simulate.compiled.flat import replay_flat
from takeup.caching.traces.flat import write_oracle_general
from takeup.caching.traces.generators import zipf_trace

libcachesim = pytest.importorskip("libcachesim", reason="needs the package libcachesim: pip install 'takeup[bench]'")

PEERS = {
    "lru": "LRU",
    "fifo": "FIFO",
    "lfu": "LFU",
    "sieve": "Sieve",
    "s3fifo": "S3FIFO",
    "gdsf": "GDSF",
    "min": "Belady",
}
NUM_REQUESTS = 100_000


def zipf() -> FlatTrace:
    return zipf_trace(NUM_REQUESTS, 12_000, 0.9, np.random.default_rng(11))


def scans() -> FlatTrace:
    """A popular set that one long scan after the other tries to push out."""
    rng = np.random.default_rng(12)
    popular = rng.zipf(1.3, NUM_REQUESTS) % 500
    scanned = 500 + np.arange(NUM_REQUESTS) % 3000
    is_scan = np.arange(NUM_REQUESTS) // 700 % 3 == 0
    return FlatTrace("scans", np.where(is_scan, scanned, popular).astype(np.int32), np.ones(3500, np.int64))


TRACES = {"zipf": zipf(), "scans": scans()}


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("oracle")
    for name, trace in TRACES.items():
        keys = 1 + np.arange(trace.num_blocks, dtype=np.uint64)
        write_oracle_general(folder / f"{name}.bin", trace, keys)
    return {name: folder / f"{name}.bin" for name in TRACES}


def peer_misses(policy: str, path: Path, capacity: int) -> int:
    reader: Any = libcachesim.TraceReader(str(path), libcachesim.TraceType.ORACLE_GENERAL_TRACE)
    cache: Any = getattr(libcachesim, PEERS[policy])(cache_size=capacity, hashpower=16)
    miss_share, _ = cache.process_trace(reader)
    return round(float(miss_share) * NUM_REQUESTS)


@pytest.mark.parametrize("capacity", [30, 100, 777, 2500])
@pytest.mark.parametrize("name", TRACES)
@pytest.mark.parametrize("policy", PEERS)
def test_misses_are_the_same(policy: str, name: str, capacity: int, paths: dict[str, Path]) -> None:
    ours = replay_flat(policy, TRACES[name], capacity).num_misses

    assert ours == peer_misses(policy, paths[name], capacity)
