"""Everyday jobs on Dask with its own settings: `python -m benchmarks.caching dask-defaults [--only JOB ...]`.

Two worker processes of two threads, each with a memory limit of 1 GB and Dask's own thresholds, so that values are
spilled by their size, by the memory of the process, or not at all; shuffles and rechunks are P2P. Stock and `dag` take
turns, every run on a new cluster. Bytes are the workers' disk counters, CPU is that of workers and scheduler, a pause
is a worker that the scheduler saw stop for lack of memory. The jobs with ample memory, a tenth of the data or tasks
that hold next to nothing, must cost nothing.
"""

from __future__ import annotations

import benchmarks.support.one_thread  # noqa: F401  isort: skip

import json
import math
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import dask
import dask.array
import dask.bag
import dask.dataframe
import distributed
import numpy as np
import pandas  # type: ignore[import-untyped]

from benchmarks.support.dated import options_of, publish, versions
from takeup.caching.engines.dask import install
from takeup.core.files import write_atomically
from takeup.core.report import Check, Column, Report, Table

lazy: Any = dask  # these say little about their types
arrays: Any = dask.array
frames: Any = dask.dataframe
bags: Any = dask.bag
cluster_of: Any = distributed.LocalCluster
client_of: Any = distributed.Client
wait: Any = distributed.wait

MB = 1_000_000
DATA_MB = 1_400
LIMIT = "1GB"
READ_BAR, WRITTEN_BAR, AMPLE_BAR = 0.75, 0.5, 1.02


def k_means(client: Any, size_mb: int) -> float:
    """Lloyd's steps over points that are kept; each waits for the one before."""
    num_rows = size_mb * MB // 8 // 20
    points = arrays.random.default_rng(1).random((num_rows, 20), chunks=(num_rows // 40, 20)).persist()
    centres = np.random.default_rng(2).random((5, 20))
    for _ in range(5):
        sums = points.map_blocks(_sums_by_centre, centres, chunks=((5,) * points.numblocks[0], (21,)), dtype="f8")
        found = sums.reshape((-1, 5, 21)).sum(axis=0).compute()
        centres = found[:, :20] / np.maximum(1, found[:, 20:])
    return float(centres.sum())


def _sums_by_centre(points: Any, centres: Any) -> Any:
    nearest = (points @ centres.T - (centres**2).sum(axis=1) / 2).argmax(axis=1)
    marked = np.eye(5)[nearest]
    return np.concatenate([marked.T @ points, marked.sum(axis=0)[:, None]], axis=1)


def climate(client: Any, size_mb: int) -> float:
    """Maps by time, turned into series by place (P2P), their anomalies, and two results of them."""
    num_places = size_mb * MB // 8 // 400
    field = arrays.random.default_rng(1).random((400, num_places), chunks=(10, num_places)).persist()
    wait(field)
    series = field.rechunk((400, num_places // 40)).persist()
    del field
    anomaly = series - series.mean(axis=0)
    return float((anomaly**2).mean().compute() + abs(anomaly).max(axis=0).mean().compute())


def orders(client: Any, size_mb: int) -> float:
    """Two tables joined by a shuffle (P2P), grouped twice."""
    rows = size_mb * MB // 8 // 8 // 2 // 24
    left, right = (
        frames.from_map(_orders, [seed * 1_000 + part for part in range(24)], rows=rows).persist() for seed in (1, 2)
    )
    joined = left.merge(right[["key", "value"]], on="key", suffixes=("", "_other")).persist()
    sums = joined.groupby(joined.key % 100).value_other.sum().compute()
    return float(sums.sum() + left.groupby(left.key % 10).value.mean().compute().sum() + len(right))


def _orders(seed: int, rows: int) -> Any:
    rng = np.random.default_rng(seed)
    others = {f"other_{i}": rng.random(rows) for i in range(6)}
    return pandas.DataFrame({"key": rng.integers(0, 2_000_000, rows), "value": rng.random(rows), **others})


def decomposed(client: Any, size_mb: int) -> float:
    """The largest singular values of a tall matrix, by random projections."""
    num_rows = size_mb * MB // 8 // 500
    tall = arrays.random.default_rng(1).random((num_rows, 500), chunks=(num_rows // 36, 500)).persist()
    wait(tall)
    _, values, _ = arrays.linalg.svd_compressed(tall, k=4, n_power_iter=2, seed=3)
    return float(values.compute().sum())


def nested(client: Any, size_mb: int) -> float:
    """Tasks that read one block, then submit tasks over others and wait for them."""
    blocks = client.map(_block, range(36), size=size_mb * MB // 8 // 36)
    wait(blocks)
    names = [block.key for block in blocks]
    asked = [client.submit(_ask, blocks[i], names[i + 1 : i + 7], turn) for turn in range(4) for i in range(0, 36, 6)]
    return float(sum(client.gather(asked)))


def _block(seed: int, size: int) -> Any:
    return np.random.default_rng(seed).random(size)


def _ask(block: Any, names: list[str], turn: int) -> float:
    with distributed.worker_client() as client:
        others: list[Any] = [distributed.Future(name, client) for name in names]
        return float(sum(client.gather(client.map(_tail, others, turn=turn, pure=False))) - _tail(block, turn))


def _tail(block: Any, turn: int) -> float:
    return float(block[turn::7].sum())


def lines(client: Any, size_mb: int) -> float:
    """Text in a bag: cleaned once, then counted in four ways."""
    text = bags.from_sequence(range(48), npartitions=48).map_partitions(_lines, size=size_mb * MB // 48).persist()
    words = text.map(str.title).persist()
    counts = [words.filter(lambda line, first=first: first in line).count().compute() for first in "ABCD"]
    return float(sum(counts) + text.map(len).sum().compute())


def _lines(seeds: Any, size: int) -> list[str]:
    rng = np.random.default_rng(next(iter(seeds)))
    return [row.tobytes().hex() for row in rng.integers(0, 256, (size // 2 // 1_000, 500), np.uint8)]


def smoothed(client: Any, size_mb: int) -> float:
    """Means over neighbours, across the borders of chunks, step after step; steps before are kept."""
    side = math.isqrt(size_mb * MB // 8 // 2)
    grid = arrays.random.default_rng(1).random((side, side), chunks=(side // 5 + 1, side // 4 + 1)).persist()
    steps = [grid]
    for _ in range(3):
        steps.append(steps[-1].map_overlap(_smooth, depth=1, boundary="reflect", meta=np.zeros((0, 0))))
    return float(sum(step.mean() for step in steps).compute())


def _smooth(chunk: Any) -> Any:
    return (chunk + np.roll(chunk, 1, 0) + np.roll(chunk, 1, 1)) / 3


def delayed_graph(client: Any, size_mb: int) -> float:
    """A random graph of delayed calls, whole at once."""
    rng = np.random.default_rng(5)
    make, mix = lazy.delayed(_block), lazy.delayed(_mix)
    nodes = [make(seed, size_mb * MB // 8 // 30) for seed in range(30)]
    for _ in range(60):
        chosen = rng.choice(len(nodes), 2, replace=False)
        nodes.append(mix(*(nodes[i] for i in chosen)))
    return float(sum(lazy.compute(*[lazy.delayed(np.mean)(node) for node in nodes[-40:]])))


def _mix(one: Any, other: Any) -> Any:
    return np.minimum(one, other[::-1])


def folds(client: Any, size_mb: int) -> float:
    """Models of different strength, each fitted to four fifths of the blocks, the stronger ones first."""
    blocks = client.map(_block, range(35), size=size_mb * MB // 8 // 35)
    wait(blocks)
    scores = [
        client.submit(_fit, blocks[fold::5][:4], strength, priority=strength)
        for strength in range(5)
        for fold in range(5)
    ]
    return float(sum(client.gather(scores)))


def _fit(blocks: list[Any], strength: int) -> float:
    return float(sum(block.mean() ** (1 + strength) for block in blocks))


def tiny(client: Any, size_mb: int) -> float:
    """Tasks that compute and hold next to nothing."""
    total = client.map(_half, range(3_000), pure=False)
    return float(client.submit(sum, total).result())


def _half(number: int) -> float:
    return number / 2


JOBS: dict[str, tuple[Callable[[Any, int], float], int]] = {  # and their data in MB
    "k-means": (k_means, DATA_MB),
    "climate": (climate, DATA_MB * 2 // 3),
    "orders": (orders, DATA_MB // 2),
    "decomposed": (decomposed, DATA_MB),
    "nested": (nested, DATA_MB),
    "lines": (lines, DATA_MB // 2),
    "smoothed": (smoothed, DATA_MB),
    "delayed": (delayed_graph, DATA_MB),
    "folds": (folds, DATA_MB),
    "tiny tasks": (tiny, 0),
    "k-means, ample": (k_means, DATA_MB // 6),
    "orders, ample": (orders, DATA_MB // 6),
}
AMPLE = ("tiny tasks", "k-means, ample", "orders, ample")


@dataclass(frozen=True, slots=True)
class Run:
    """One job, once."""

    read_mb: float
    written_mb: float
    cpu_s: float
    num_pauses: int
    num_lost: int
    wall_s: float
    answer: float


Runs = dict[str, list[list[Run]]]  # by job: of stock, and of dag


def measure(job: str, policy: str) -> Run:
    """One run on a new cluster, from loading the data to the answer."""
    run, size_mb = JOBS[job]
    with (
        cluster_of(n_workers=2, threads_per_worker=2, memory_limit=LIMIT, dashboard_address=":0") as workers,
        client_of(workers) as client,
    ):
        if policy:
            install(client, policy)
        before, began_s, began_cpu_s = client.run(_usage), time.perf_counter(), time.process_time()
        answer = run(client, size_mb)
        wall_s, cpu_s, after = time.perf_counter() - began_s, time.process_time() - began_cpu_s, client.run(_usage)
        events = [event for _, event in client.get_events("all")]
    found = [
        [mine - start for mine, start in zip(after[one], before.get(one, (0, 0, 0)), strict=True)] for one in after
    ]
    read, written, workers_s = (sum(each) for each in zip(*found, strict=True))
    paused = sum(event.get("status") == "paused" for event in events if isinstance(event, dict))
    lost = sum(event.get("action") == "remove-worker" for event in events if isinstance(event, dict))
    return Run(read / MB, written / MB, workers_s + cpu_s, paused, lost, wall_s, answer)


def _usage(dask_worker: Any) -> tuple[float, float, float]:
    metrics = dask_worker.data.cumulative_metrics
    return metrics["disk-read", "bytes"], metrics["disk-write", "bytes"], time.process_time()


def measure_all(names: list[str], num_rounds: int, keep: Path | None) -> Runs:
    """Rounds in which stock and `dag` take turns; those in the file `keep` count too."""
    held = json.loads(keep.read_text("utf-8")) if keep and keep.exists() else {}
    runs: Runs = {job: [[Run(**run) for run in side] for side in sides] for job, sides in held.items()}
    for number in range(num_rounds):
        for job in names:
            sides = runs.setdefault(job, [[], []])
            for side in (0, 1) if len(sides[0]) % 2 == 0 else (1, 0):
                sides[side].append(measure(job, ("", "dag")[side]))
                print(
                    f"round {number + 1}: {job}, {('stock', 'dag')[side]}: {sides[side][-1]}",
                    file=sys.stderr,
                    flush=True,
                )
            if keep:
                write_atomically(
                    keep, json.dumps({job: [[asdict(r) for r in s] for s in t] for job, t in runs.items()})
                )
    return runs


def mean(runs: list[Run], name: str) -> float:
    return statistics.fmean(getattr(run, name) for run in runs)


def row_of(job: str, stock: list[Run], ours: list[Run]) -> tuple[Any, ...]:
    ratios = [mean(ours, name) / max(1e-9, mean(stock, name)) for name in ("read_mb", "written_mb", "cpu_s")]
    most = max(run.read_mb for run in stock) / max(1e-9, mean(stock, "read_mb"))
    is_ample = job in AMPLE
    sizes = ["" if is_ample else ratio for ratio in (*ratios[:2], most)]
    pauses = [sum(run.num_pauses for run in side) for side in (stock, ours)]
    return (
        job,
        len(ours),
        sizes[0],
        sizes[2],
        sizes[1],
        ratios[2],
        *pauses,
        mean(stock, "read_mb"),
        mean(stock, "written_mb"),
    )


def checks_of(runs: Runs) -> Iterator[Check]:
    short = [(job, sides[0], sides[1]) for job, sides in runs.items() if job not in AMPLE]
    for name, bar in (("read_mb", READ_BAR), ("written_mb", WRITTEN_BAR)):
        ratios = [mean(ours, name) / max(1e-9, mean(stock, name)) for _, stock, ours in short]
        yield Check.at_most(f"{name} of dag to stock, mean of the jobs", statistics.fmean(ratios), bar)
    for job, stock, ours in short:
        yield Check.at_most(
            f"{job}: MB read, to the most of stock", mean(ours, "read_mb"), max(r.read_mb for r in stock)
        )
        pauses = [sum(run.num_pauses for run in side) for side in (ours, stock)]
        yield Check.at_most(f"{job}: pauses of dag, to those of stock", *pauses)
    for job in [job for job in runs if job in AMPLE]:
        ratio = min(run.cpu_s for run in runs[job][1]) / min(run.cpu_s for run in runs[job][0])
        yield Check.at_most(f"{job}: least CPU of dag to that of stock", ratio, AMPLE_BAR)
    for job, (stock, ours) in runs.items():
        wrong = sum(not math.isclose(run.answer, stock[0].answer, rel_tol=1e-9) for run in ours)
        yield Check.at_most(f"{job}: answers unlike stock's", wrong, 0)


def report_of(runs: Runs) -> Report:
    columns = (
        Column("job"),
        Column("rounds", "", 0),
        *(Column(name, "", 2) for name in ("read", "most of stock", "written", "CPU")),
        *(Column(name, "", 0) for name in ("pauses of stock", "pauses of dag")),
        *(Column(name, "MB", 0) for name in ("stock read", "stock written")),
    )
    rows = tuple(row_of(job, *sides) for job, sides in runs.items())
    note = "Means over the rounds, to the mean of stock; `most of stock` is its largest round to its mean."
    return Report(
        "Caching: everyday jobs on Dask with its own settings",
        "caching",
        {"command": "python -m benchmarks.caching dask-defaults", "memory_limit": LIMIT, "data_mb": DATA_MB},
        1,
        (Table("dag to stock Dask", columns, rows, note),),
        checks=tuple(checks_of(runs)),
        notes=(f"Versions: {versions(('takeup', 'dask', 'distributed', 'numpy', 'pandas'))}. 2 workers x 2 threads.",),
    )


def main() -> int:
    parser = options_of(__doc__)
    parser.add_argument("--only", nargs="*", choices=list(JOBS), default=list(JOBS), help="only these jobs")
    parser.add_argument("--rounds", type=int, default=5, help="how often everything runs; 0 reports what is kept")
    parser.add_argument("--keep", type=Path, metavar="FILE", help="keep the rounds there, and add to those kept")
    options = parser.parse_args()
    return publish(report_of(measure_all(options.only, options.rounds, options.keep)), "caching-defaults-dask", options)


if __name__ == "__main__":
    sys.exit(main())
