"""Synthetic applications whose graphs have the shape of real ones. Each returns a `Workload`; sizes can be scaled.

| name         | shape                                                                                              |
| ------------ | -------------------------------------------------------------------------------------------------- |
| zip          | tenants that each load two files and zip them block by block: every task needs *both* its inputs    |
| pagerank     | a static edge table read in every iteration, and ranks that are read once and then dead             |
| components   | the same with an active set that shrinks from iteration to iteration                                |
| svdpp        | edges and two sets of factors; each iteration reads the factors twice and replaces them             |
| scan         | passes over the same blocks: the case in which recency is always wrong                              |
| array        | power iteration `x.T @ (x @ v)` on chunks: wide reads, many tiny intermediates                      |
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from takeup.caching.model import Workload
from takeup.caching.traces.builder import WorkloadBuilder

__all__ = ["WORKLOADS", "array_power", "components", "pagerank", "scan", "svdpp", "zip_tenants"]

MB = 1_000_000


def zip_tenants(  # noqa: PLR0913 (the settings of the experiment)
    rng: np.random.Generator,
    *,
    num_tenants: int = 10,
    num_blocks: int = 100,
    num_workers: int = 20,
    block_bytes: int = 4 * MB,
    compute_s: float = 0.05,
) -> Workload:
    """Every tenant loads the blocks of its first file, then of its second, then zips them; tenants interleave at
    random. Peers live on the same worker."""
    builder = WorkloadBuilder("zip")
    pairs = [(tenant, index) for tenant in range(num_tenants) for index in range(num_blocks)]
    for tenant, index in pairs:
        for file in "AB":
            worker = (tenant * num_blocks + index) % num_workers
            builder.block((file, tenant, index), block_bytes, worker)
    stages = [builder.stage()]
    stages += [builder.stage(after=stages[0])]
    stages += [builder.stage(after=stages[1])]
    for file, stage in zip("AB", stages, strict=False):
        for tenant, index in _interleave(rng, num_tenants, num_blocks):
            builder.task(outputs=[(file, tenant, index)], job=tenant, stage=stage, compute_s=compute_s)
    for tenant, index in _interleave(rng, num_tenants, num_blocks):
        inputs = [(file, tenant, index) for file in "AB"]
        builder.task(inputs=inputs, job=tenant, stage=stages[2], compute_s=compute_s)
    return builder.build()


def _interleave(rng: np.random.Generator, num_tenants: int, num_blocks: int) -> list[tuple[int, int]]:
    """(tenant, index) pairs: every tenant goes through its blocks in order, and whose turn it is is drawn."""
    turns = rng.permutation(np.repeat(np.arange(num_tenants), num_blocks)).tolist()
    indices = [iter(range(num_blocks)) for _ in range(num_tenants)]
    return [(tenant, next(indices[tenant])) for tenant in turns]


WORKLOADS: dict[str, Callable[[np.random.Generator], Workload]] = {"zip": zip_tenants}
