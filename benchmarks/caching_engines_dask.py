"""Dask's spilling under each policy beside stock Dask: `python benchmarks/caching_engines_dask.py [--rounds 3]`.

A real cluster for every cell: two worker processes with one thread each, memory for half of the data. Stock and
policies take turns in every round; the table shows medians over the rounds, as ratios to stock in the same round. Bytes
are the workers' own disk counters, CPU is the workers' processes, both from loading the data to the answer. Every
answer is compared with stock's. Exit code 1 if a bar is missed.
"""

from __future__ import annotations

import one_thread  # noqa: F401  isort: skip

import argparse
import contextlib
import math
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import dask
import dask.array
import dask.dataframe
import distributed
import numpy as np
import pandas  # type: ignore[import-untyped]
from dated import machine, result_name, versions

from takeup.caching.engines.dask import install
from takeup.core.files import write_atomically
from takeup.core.render import to_markdown, to_text
from takeup.core.report import Check, Column, Report, Table

arrays: Any = dask.array  # these three say little about their types
frames: Any = dask.dataframe
cluster_of: Any = distributed.LocalCluster
client_of: Any = distributed.Client
wait: Any = distributed.wait

SEED = 0
NUM_WORKERS = 2
MEMORY_SHARE = 0.5
MEMORY_LIMIT_BYTES = 4_000_000_000  # only its share counts: the target is set from the data
BLOCK_BYTES = 4_000_000 - 128  # with what Dask counts for an array, four million
SETTINGS = {
    "distributed.worker.memory.spill": False,  # the process holds more than the data: only the target decides
    "distributed.worker.memory.pause": False,
    "distributed.worker.memory.terminate": False,
    "array.chunk-size": "16MB",  # of intermediate chunks; the default is larger than all memory here
    "array.rechunk.method": "tasks",  # the other way keeps its data outside the spill buffer
    "dataframe.shuffle.method": "tasks",
}


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
}
ITERATIVE = ("scan", "zip", "power")
READ_BAR, WRITTEN_BAR, NEVER_WORSE = 0.65, 0.15, 1.03


@dataclass(frozen=True, slots=True)
class Cell:
    """One workload under one policy, once."""

    read_bytes: float
    written_bytes: float
    cpu_s: float
    wall_s: float
    answer: float


Cells = dict[tuple[str, str], list[Cell]]


@contextlib.contextmanager
def cluster(data_bytes: int) -> Iterator[Any]:
    """Two worker processes with memory for half of the data."""
    target = MEMORY_SHARE * data_bytes / NUM_WORKERS / MEMORY_LIMIT_BYTES
    with (
        dask.config.set({**SETTINGS, "distributed.worker.memory.target": target}),
        cluster_of(
            n_workers=NUM_WORKERS,
            threads_per_worker=1,
            processes=True,
            memory_limit=MEMORY_LIMIT_BYTES,
            dashboard_address=":0",
        ) as workers,
        client_of(workers) as client,
    ):
        yield client


def measure(workload: str, policy: str, **options: Any) -> Cell:
    """One run on a new cluster, from loading the data to the answer."""
    run, data_bytes = WORKLOADS[workload]
    with cluster(data_bytes) as client:
        if policy != "stock":
            install(client, policy, **options)
        before, began_s = client.run(_usage), time.perf_counter()
        answer = run(client)
        wall_s, after = time.perf_counter() - began_s, client.run(_usage)
    read, written, cpu_s = (sum(after[worker][i] - before[worker][i] for worker in after) for i in range(3))
    return Cell(read, written, cpu_s, wall_s, answer)


def _usage(dask_worker: Any) -> tuple[float, float, float]:
    metrics = dask_worker.data.cumulative_metrics
    return metrics["disk-read", "bytes"], metrics["disk-write", "bytes"], time.process_time()


def measure_all(workloads: Sequence[str], policies: Sequence[str], num_rounds: int, options: dict[str, Any]) -> Cells:
    """Every pair, policies in turn, round after round."""
    cells: Cells = {(workload, policy): [] for workload in workloads for policy in ("stock", *policies)}
    for at in range(num_rounds):
        for workload, policy in cells:
            cell = measure(workload, policy, **({} if policy == "stock" else options))
            cells[workload, policy].append(cell)
            print(f"round {at + 1}: {workload} {policy} {cell}", file=sys.stderr, flush=True)
    return cells


def ratio(cells: Cells, workload: str, policy: str, name: str) -> float:
    """Median over the rounds of policy over stock."""
    pairs = zip(cells[workload, policy], cells[workload, "stock"], strict=True)
    return float(statistics.median(getattr(cell, name) / max(1e-9, getattr(stock, name)) for cell, stock in pairs))


def is_equal(cells: Cells, workload: str, policy: str) -> bool:
    """Equal answers; sums of floats may differ in the last digits, because arrays read back lie elsewhere."""
    wanted = cells[workload, "stock"][0].answer
    return all(math.isclose(cell.answer, wanted, rel_tol=1e-12) for cell in cells[workload, policy])


def checks_of(cells: Cells) -> Iterator[Check]:
    """The bars, all for `dag`; equal answers for every policy."""
    for workload, policy in cells:
        if policy != "stock":
            is_right = is_equal(cells, workload, policy)
            yield Check.at_least(f"{workload}, {policy}: answer as stock", float(is_right), 1.0)
    for workload in dict.fromkeys(workload for workload, policy in cells if policy == "dag"):
        read_bar, written_bar = (READ_BAR, WRITTEN_BAR) if workload in ITERATIVE else (1.0, NEVER_WORSE)
        for name, bar in (("read_bytes", read_bar), ("written_bytes", written_bar), ("cpu_s", NEVER_WORSE)):
            yield Check.at_most(f"{workload}: {name} of dag to stock", ratio(cells, workload, "dag", name), bar)


def table_of(cells: Cells) -> Table:
    """Stock in bytes and seconds, policies in ratios to it."""
    columns = (
        Column("workload"),
        Column("policy"),
        Column("read"),
        Column("written"),
        Column("CPU"),
        Column("wall"),
        Column("stock read", "MB", 0),
        Column("stock written", "MB", 0),
        Column("stock CPU", "s", 1),
    )
    names = ("read_bytes", "written_bytes", "cpu_s", "wall_s")
    rows = []
    for workload, policy in cells:
        if policy != "stock":
            stock = cells[workload, "stock"]
            sizes = (statistics.median(getattr(cell, name) for cell in stock) for name in names[:3])
            read, written, cpu_s = sizes
            ratios = (ratio(cells, workload, policy, name) for name in names)
            rows.append((workload, policy, *ratios, read / MB, written / MB, cpu_s))
    note = "Medians over the rounds of the ratio to stock. Wall time on a shared machine says little."
    return Table("Dask under each policy, to stock", columns, tuple(rows), note)


def report_of(cells: Cells, num_rounds: int, options: dict[str, Any]) -> Report:
    """Everything, with what made it."""
    return Report(
        title="Caching: Dask's spilling beside stock Dask",
        domain="caching",
        scenario={
            "workers": f"{NUM_WORKERS} processes x 1 thread",
            "memory": f"{MEMORY_SHARE:.0%} of the data",
            "rounds": num_rounds,
            "options": str(options),
            "versions": versions(["dask", "distributed", "zict", "numpy", "pandas"]),
        },
        seed=SEED,
        tables=(table_of(cells),),
        checks=tuple(checks_of(cells)),
        version=version("takeup"),
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        machine=machine(),
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print, and write the dated result if a folder is given."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--workloads", default=",".join(WORKLOADS))
    parser.add_argument("--policies", default="lru,lrc,lerc,mrd,next,dag")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--prefetch", action="store_true")
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="also write the report there as dated markdown")
    given = parser.parse_args(argv)
    options = {"prefetch": True} if given.prefetch else {}
    cells = measure_all(given.workloads.split(","), given.policies.split(","), given.rounds, options)
    report = report_of(cells, given.rounds, options)
    print(to_text(report))
    if given.out is not None:
        write_atomically(given.out / result_name("caching_engines_dask", report), to_markdown(report))
    return 0 if report.holds else 1


if __name__ == "__main__":
    sys.exit(main())
