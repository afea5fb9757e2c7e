"""Dask's spilling under each policy beside stock Dask: `python -m benchmarks.caching dask-engine [--rounds 3]`.

A real cluster for every cell: two worker processes with one thread each, memory for half of the data. Stock and
policies take turns in every round; the table shows medians over the rounds, as ratios to stock. With `--keep FILE`
rounds are added to those that the file holds, so that a long measurement can be made in parts. Bytes are the workers'
own disk counters, CPU is the workers' processes, both from loading the data to the answer. Every answer is compared
with stock's. Exit code 1 if a bar is missed.
"""

from __future__ import annotations

import benchmarks.support.one_thread  # noqa: F401  isort: skip

import argparse
import contextlib
import json
import math
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import dask
import distributed
import numpy as np

from benchmarks.caching.dask_victims import victim_choices
from benchmarks.caching.dask_workloads import MB, SEED, WORKLOADS
from benchmarks.support.dated import machine, result_name, versions
from benchmarks.support.markdown import to_markdown
from takeup.caching.engines.dask import install
from takeup.core.files import write_atomically
from takeup.core.render import to_text
from takeup.core.report import Check, Column, Report, Table

cluster_of: Any = distributed.LocalCluster  # these say little about their types
client_of: Any = distributed.Client

NUM_WORKERS = 2
MEMORY_SHARE = 0.5
MEMORY_LIMIT_BYTES = 4_000_000_000  # only its share counts: the target is set from the data
SETTINGS = {
    "distributed.worker.memory.spill": False,  # the process holds more than the data: only the target decides
    "distributed.worker.memory.pause": False,
    "distributed.worker.memory.terminate": False,
    "array.chunk-size": "16MB",  # of intermediate chunks; the default is larger than all memory here
    "array.rechunk.method": "tasks",  # the other way keeps its data outside the spill buffer
    "dataframe.shuffle.method": "tasks",
}

ITERATIVE = ("scan", "zip", "power")
NUM_RESAMPLES = 10_000
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


def measure(workload: str, policy: str) -> Cell:
    """One run on a new cluster, from loading the data to the answer."""
    run, data_bytes = WORKLOADS[workload]
    with cluster(data_bytes) as client:
        if policy != "stock":
            install(client, policy)
        before, began_s = client.run(_usage), time.perf_counter()
        answer = run(client)
        wall_s, after = time.perf_counter() - began_s, client.run(_usage)
    read, written, cpu_s = (sum(after[worker][i] - before[worker][i] for worker in after) for i in range(3))
    return Cell(read, written, cpu_s, wall_s, answer)


def _usage(dask_worker: Any) -> tuple[float, float, float]:
    metrics = dask_worker.data.cumulative_metrics
    return metrics["disk-read", "bytes"], metrics["disk-write", "bytes"], time.process_time()


def measure_all(given: argparse.Namespace) -> Cells:
    """Every pair, policies in turn, round after round, in an order that turns around; and what was kept before."""
    cells = load(given.keep)
    workloads, policies = given.workloads.split(","), ["stock", *given.policies.split(",")]
    for number in range(given.rounds):
        for workload in workloads:
            is_odd = len(cells.get((workload, "stock"), ())) % 2
            for policy in policies[:: -1 if is_odd else 1]:
                cell = measure(workload, policy)
                cells.setdefault((workload, policy), []).append(cell)
                print(f"round {number + 1}: {workload} {policy} {cell}", file=sys.stderr, flush=True)
        save(given.keep, cells)
    return cells


def load(path: Path | None) -> Cells:
    """What an earlier measurement has kept; nothing if there is none."""
    kept = json.loads(path.read_text("utf-8")) if path is not None and path.exists() else []
    return {(workload, policy): [Cell(**cell) for cell in cells] for workload, policy, cells in kept}


def save(path: Path | None, cells: Cells) -> None:
    """Keep what was measured so far, if there is a place for it."""
    if path is not None:
        rows = [(workload, policy, [asdict(cell) for cell in found]) for (workload, policy), found in cells.items()]
        write_atomically(path, json.dumps(rows))


def ratio(cells: Cells, workload: str, policy: str, name: str) -> float:
    """The median over all rounds of the policy, to that of stock: how a cluster shares out tasks differs by chance, so
    no round of the one belongs to a round of the other."""
    sides = (statistics.median(getattr(cell, name) for cell in cells[workload, one]) for one in (policy, "stock"))
    ours, stock = sides
    return float(ours / max(1e-9, stock))


def interval(cells: Cells, workload: str, policy: str, name: str) -> str:
    """The 95 % interval of that ratio, by resampling the rounds of both."""
    rng = np.random.default_rng(SEED)
    sides = (np.array([getattr(cell, name) for cell in cells[workload, one]]) for one in (policy, "stock"))
    ours, stock = (np.median(rng.choice(side, (NUM_RESAMPLES, len(side))), axis=1) for side in sides)
    low, high = np.percentile(ours / np.maximum(1e-9, stock), (2.5, 97.5))
    return f"{low:.2f} to {high:.2f}"


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
        Column("rounds", "", 0),
        Column("read"),
        Column("95 % of read"),
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
            first, *others = (ratio(cells, workload, policy, name) for name in names)
            sure = interval(cells, workload, policy, "read_bytes")
            num_rounds = len(cells[workload, policy])
            rows.append((workload, policy, num_rounds, first, sure, *others, read / MB, written / MB, cpu_s))
    note = "Medians over the rounds, to those of stock. Wall time on a shared machine says little."
    return Table("Dask under each policy, to stock", columns, tuple(rows), note)


def report_of(cells: Cells, given: argparse.Namespace) -> Report:
    """Everything, with what made it."""
    victims, victim_check = victim_choices()
    return Report(
        title="Caching: Dask's spilling beside stock Dask",
        domain="caching",
        scenario={
            "workers": f"{NUM_WORKERS} processes x 1 thread",
            "memory": f"{MEMORY_SHARE:.0%} of the data",
            "versions": versions(["dask", "distributed", "zict", "numpy", "pandas"]),
        },
        seed=SEED,
        tables=(table_of(cells), victims),
        checks=(*checks_of(cells), victim_check),
        version=version("takeup"),
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        machine=machine(),
        notes=(given.note,) if given.note else (),
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print, and write the dated result if a folder is given."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--workloads", default=",".join(WORKLOADS))
    parser.add_argument("--policies", default="lru,lrc,lerc,mrd,furthest_next_use,dag")
    parser.add_argument("--rounds", type=int, default=3, help="how often everything runs; 0 reports what is kept")
    parser.add_argument("--keep", type=Path, metavar="FILE", help="keep the rounds there, and add to those kept")
    parser.add_argument("--note", default="", help="what else ran on the machine; goes into the report")
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="also write the report there as dated markdown")
    given = parser.parse_args(argv)
    cells = measure_all(given)
    report = report_of(cells, given)
    print(to_text(report))
    if given.out is not None:
        write_atomically(given.out / result_name("caching_engines_dask", report), to_markdown(report))
    return 0 if report.holds else 1
