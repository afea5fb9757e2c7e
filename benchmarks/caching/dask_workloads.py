"""Workloads for a Dask cluster: each is given a client, loads its data, and returns a checksum."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import dask.array
import dask.dataframe
import distributed
import numpy as np
import pandas  # type: ignore[import-untyped]

arrays: Any = dask.array  # these say little about their types
frames: Any = dask.dataframe
wait: Any = distributed.wait

SEED = 0
BLOCK_BYTES = 4_000_000 - 128  # with what Dask counts for an array, four million


def blocks_of(client: Any, name: str, num_blocks: int) -> list[Any]:
    """Persisted blocks of random bytes."""
    futures = [client.submit(_block, SEED + i, key=f"{name}-{i}") for i in range(num_blocks)]
    wait(futures)
    return futures


def _block(seed: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).random(BLOCK_BYTES // 8)


def scan(client: Any) -> float:
    """Six passes over the same blocks."""
    blocks = blocks_of(client, "block", 40)
    return float(sum(sum(client.gather(client.map(np.sum, blocks, pure=False))) for _ in range(6)))


def zip_pairs(client: Any) -> float:
    """Six passes over pairs of blocks."""
    left, right = blocks_of(client, "left", 40), blocks_of(client, "right", 40)
    return float(sum(sum(client.gather(client.map(np.vdot, left, right, pure=False))) for _ in range(6)))


def power(client: Any) -> float:
    """Power iteration: six times x.T @ (x @ v), each submitted when the one before is there."""
    matrix = arrays.random.default_rng(SEED).random((10_000, 2_000), chunks=(1_000, 500)).persist()
    wait(matrix)
    vector = np.ones(2_000)
    for _ in range(6):
        product = (matrix.T @ (matrix @ arrays.from_array(vector, chunks=500))).compute()
        vector = product / np.linalg.norm(product)
    return float(vector.sum())


def join(client: Any) -> float:
    """Shuffle-join of two tables, then an aggregate."""
    tables = [_table(seed, 1_250_000, 20).persist() for seed in (SEED, SEED + 1)]
    wait(tables)
    joined = tables[0].merge(tables[1], on="key", suffixes=("", "_other"))
    return float((joined.value * joined.value_other).sum().compute())


def rechunk(client: Any) -> float:
    """From chunks along time to chunks along space, then an anomaly along time, as in climate data."""
    field = arrays.random.default_rng(SEED).random((2_000, 10_000), chunks=(100, 10_000)).persist()
    wait(field)
    series = field.rechunk((2_000, 500))
    return float(((series - series.mean(axis=0)) ** 2).sum().compute())


def tree(client: Any) -> float:
    """Blocks added in pairs until one is left, twice."""
    blocks = blocks_of(client, "leaf", 40)
    total = 0.0
    for _ in range(2):
        level = list(blocks)
        while len(level) > 1:
            pairs = list(zip(level[::2], level[1::2], strict=False))
            level = [client.submit(np.add, *pair, pure=False) for pair in pairs] + level[2 * len(pairs) :]
        total += float(client.submit(np.sum, level[0], pure=False).result())
    return total


def stencil(client: Any) -> float:
    """Four steps of a five-point mean over neighbouring chunks."""
    grid = arrays.random.default_rng(SEED).random((4_000, 5_000), chunks=(1_000, 500)).persist()
    wait(grid)
    for _ in range(4):
        grid = grid.map_overlap(_mean_of_neighbours, depth=1, boundary="periodic")
    return float(grid.sum().compute())


def _mean_of_neighbours(chunk: Any) -> Any:
    rolled = (np.roll(chunk, shift, axis) for axis in (0, 1) for shift in (-1, 1))
    return (chunk + sum(rolled)) / 5


def groupby(client: Any) -> float:
    """Group-apply where a few keys hold most rows."""
    table = _table(SEED, 2_500_000, 40, skew=1.5).persist()
    wait(table)
    spread = table.groupby("key").apply(_spread, meta=("value", "f8"))
    return float(spread.sum().compute())


def _spread(group: Any) -> float:
    return float(group.value.max() - group.value.min())


def matmul(client: Any) -> float:
    """A matrix with its own transpose: every pair of blocks of a column meets once."""
    matrix = arrays.random.default_rng(SEED).random((4_000, 5_000), chunks=(1_000, 500)).persist()
    wait(matrix)
    return float((matrix.T @ matrix).sum().compute())


def folds(client: Any) -> float:
    """Eight passes, each over another random half of the blocks: nothing to foresee."""
    blocks = blocks_of(client, "sample", 40)
    rng, total = np.random.default_rng(SEED), 0.0
    for _ in range(8):
        chosen = [blocks[i] for i in rng.permutation(40)[:20]]
        total += float(sum(client.gather(client.map(np.sum, chosen, pure=False))))
    return total


def sort(client: Any) -> float:
    """A table sorted by a column, then the distances between neighbours; rows of equal keys may come in any order."""
    table = _table(SEED, 2_500_000, 40).persist()
    wait(table)
    ordered = table.set_index("key")
    return float((ordered.index.to_series().diff().abs().sum() + ordered.value.sum()).compute())


def small(client: Any) -> float:
    """Two thousand small values, read in groups of twenty, five times over."""
    values = client.map(_small_block, range(2_000))
    wait(values)
    groups = [values[i::100] for i in range(100)]
    return float(sum(sum(client.gather(client.map(_sum_of_all, groups, pure=False))) for _ in range(5)))


def _small_block(seed: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(SEED + seed).random(10_000)


def _sum_of_all(blocks: list[Any]) -> float:
    return float(sum(block.sum() for block in blocks))


def regression(client: Any) -> float:
    """Least squares by gradient steps: two arrays read in every step, each step waits for the one before."""
    features = arrays.random.default_rng(SEED).random((10_000, 2_000), chunks=(500, 2_000)).persist()
    target = features.sum(axis=1).persist()
    wait([features, target])
    weights = np.zeros(2_000)
    for _ in range(5):
        slope = features.T @ (features @ arrays.from_array(weights, chunks=2_000) - target)
        weights = weights - 1e-7 * slope.compute()
    return float(weights.sum())


def _table(seed: int, num_rows: int, num_partitions: int, skew: float = 0.0) -> Any:
    """Eight numbers in a row; keys are even, or few of them hold most rows."""
    rows = num_rows // num_partitions
    return frames.from_map(_partition, [seed * 1_000 + i for i in range(num_partitions)], rows=rows, skew=skew)


def _partition(seed: int, rows: int, skew: float) -> Any:
    rng = np.random.default_rng(seed)
    keys = np.minimum(rng.zipf(skew, rows), 300) if skew else rng.integers(0, 1_000_000, rows)
    columns = {"value": rng.random(rows)} | {f"other_{i}": rng.random(rows) for i in range(6)}
    return pandas.DataFrame({"key": keys.astype(np.int64), **columns})


MB = 1_000_000
WORKLOADS: dict[str, tuple[Callable[[Any], float], int]] = {  # and their data, in bytes
    "scan": (scan, 160 * MB),
    "zip": (zip_pairs, 320 * MB),
    "power": (power, 160 * MB),
    "join": (join, 160 * MB),
    "rechunk": (rechunk, 160 * MB),
    "tree": (tree, 160 * MB),
    "stencil": (stencil, 160 * MB),
    "groupby": (groupby, 160 * MB),
    "matmul": (matmul, 160 * MB),
    "folds": (folds, 160 * MB),
    "sort": (sort, 160 * MB),
    "small": (small, 160 * MB),
    "regression": (regression, 160 * MB),
}
