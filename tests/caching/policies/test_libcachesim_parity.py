"""The same misses as libCacheSim on key traces of unit size, for every policy that both have."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.support.key_traces import workload_of_keys, write_oracle_general, zipf_keys
from takeup.caching.model import EngineModel
from takeup.caching.policies import find_policy
from takeup.caching.simulate.compiled.replay import replay
from takeup.core.arrays import Ints

libcachesim = pytest.importorskip("libcachesim", reason="needs the package libcachesim: pip install 'takeup[bench]'")

PEERS = {"lru": "LRU", "belady-admission": "Belady"}
NUM_REQUESTS = 20_000


def zipf() -> Ints:
    return zipf_keys(NUM_REQUESTS, 2_400, 0.9, np.random.default_rng(11))


def scans() -> Ints:
    """A popular set that one long scan after the other tries to push out."""
    rng = np.random.default_rng(12)
    popular = rng.zipf(1.3, NUM_REQUESTS) % 500
    scanned = 500 + np.arange(NUM_REQUESTS) % 3000
    is_scan = np.arange(NUM_REQUESTS) // 700 % 3 == 0
    return 1 + np.where(is_scan, scanned, popular).astype(np.int64)


TRACES = {"zipf": zipf(), "scans": scans()}


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("oracle")
    for name, keys in TRACES.items():
        write_oracle_general(folder / f"{name}.bin", keys)
    return {name: folder / f"{name}.bin" for name in TRACES}


def peer_misses(policy: str, path: Path, capacity: int) -> int:
    reader: Any = libcachesim.TraceReader(str(path), libcachesim.TraceType.ORACLE_GENERAL_TRACE)
    cache: Any = getattr(libcachesim, PEERS[policy])(cache_size=capacity, hashpower=16)
    miss_share, _ = cache.process_trace(reader)
    return round(float(miss_share) * NUM_REQUESTS)


@pytest.mark.parametrize("capacity", [30, 100, 777])
@pytest.mark.parametrize("name", TRACES)
@pytest.mark.parametrize("policy", PEERS)
def test_misses_are_the_same(policy: str, name: str, capacity: int, paths: dict[str, Path]) -> None:
    ours = replay(find_policy(policy), workload_of_keys(TRACES[name]), EngineModel(capacity))

    assert ours.num_accesses - ours.num_hits == peer_misses(policy, paths[name], capacity)
