"""A small real cluster for the engine tests, with memory for half of what they keep, and a workload with known sums."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping
from typing import Any

import dask
import distributed
import numpy as np

__all__ = ["NUM_BLOCKS", "blocks", "cluster", "expected", "scan", "slow_total", "spill_classes", "total"]

start_cluster: Any = distributed.LocalCluster  # these are not typed
start_client: Any = distributed.Client
wait: Any = distributed.wait

NUM_BLOCKS = 16
BLOCK_BYTES = 200_000
LIMIT_BYTES = 1_000_000_000
SETTINGS = {
    "distributed.worker.memory.spill": False,
    "distributed.worker.memory.pause": False,
    "distributed.worker.memory.terminate": False,
    "distributed.comm.timeouts.connect": "30s",
}


@contextlib.contextmanager
def cluster(
    num_workers: int = 2, processes: bool = True, settings: Mapping[str, object] = SETTINGS, **options: Any
) -> Iterator[Any]:
    """Workers of one thread whose memory together holds half of the blocks."""
    target = NUM_BLOCKS * BLOCK_BYTES / 2 / 2 / LIMIT_BYTES
    with (
        dask.config.set({**SETTINGS, "distributed.worker.memory.target": target, **settings}),
        start_cluster(
            n_workers=num_workers,
            threads_per_worker=1,
            processes=processes,
            memory_limit=LIMIT_BYTES,
            dashboard_address=":0",
            **options,
        ) as workers,
        start_client(workers) as client,
    ):
        yield client


def block(number: int) -> Any:
    return np.full(BLOCK_BYTES // 8 - 16, number, np.int64)


def total(*arrays: Any) -> int:
    return int(sum(array.sum() for array in arrays))


def slow_total(array: Any) -> int:
    time.sleep(0.05)
    return total(array)


def blocks(client: Any, num_blocks: int = NUM_BLOCKS) -> list[Any]:
    """Persisted blocks."""
    futures: list[Any] = client.map(block, range(num_blocks), pure=False)
    wait(futures)
    return futures


def scan(client: Any, futures: list[Any], num_passes: int = 3) -> list[int]:
    """Sums of neighbouring blocks, in several passes."""
    passes = (client.map(total, futures[:-1], futures[1:], pure=False) for _ in range(num_passes))
    return [sum(client.gather(sums)) for sums in passes]


def expected(num_blocks: int = NUM_BLOCKS, num_passes: int = 3) -> list[int]:
    """What `scan` must give."""
    length = BLOCK_BYTES // 8 - 16
    return [sum((i + i + 1) * length for i in range(num_blocks - 1))] * num_passes


def spill_classes(dask_worker: Any) -> tuple[str, str, bool]:
    """The classes of the two parts of the buffer, and whether the worker expects news."""
    data = dask_worker.data
    return type(data.fast).__name__, type(data.slow.data).__name__, "takeup-caching-news" in dask_worker.stream_handlers
