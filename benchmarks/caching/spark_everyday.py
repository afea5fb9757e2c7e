"""Everyday jobs, each once in a new application: `python -m benchmarks.caching spark-everyday [--only JOB ...]`.

Stock Spark twice, the plug-in without a profile, and the plug-in with the event log of the first run of stock Spark.
Nothing is repeated in an application, and all settings but the size of the memory are Spark's defaults. CPU is the task
CPU of the event logs. The columns of what-if predict, from the log of stock Spark, the run without a profile.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.caching.spark_workloads.everyday import JOBS
from benchmarks.support.dated import options_of, publish, versions
from takeup.caching.experiment import CachingScenario, run
from takeup.caching.traces.spark_events import find_log, read_lines
from takeup.core.report import Cell, Check, Column, Report, Table

RUNS = {"stock": ("", ""), "again": ("", ""), "dag": ("dag", ""), "log": ("dag", "stock")}
COLUMNS = (
    Column("job"),
    Column("stock", "cpu s", 2),
    *(Column(name, "", 3) for name in ("stock again", "dag", "dag with log")),
    *(Column(name, "", 3) for name in ("stock's hits", "predicted", "hits of dag", "predicted")),
    Column("predicted time of dag", "", 3),
)
MEAN_BAR, LOG_BAR, HITS_BAR = 0.93, 0.80, 0.05


def run_job(job: str, name: str, folder: Path) -> dict[str, Any]:
    """One application; its answer, with the CPU seconds of its tasks."""
    policy, earlier = RUNS[name]
    order = {"jobs": [job], "policy": policy, "logs": str(folder / name)}
    order |= {"earlier": str(folder / earlier)} if earlier else {}
    command = [sys.executable, "-m", "benchmarks.caching.spark_workloads.everyday", json.dumps(order)]
    ran = subprocess.run(command, capture_output=True, text=True, check=True)
    answer: dict[str, Any] = json.loads(next(line for line in ran.stdout.splitlines() if line.startswith("{")))
    return answer | {"cpu_s": cpu_s(log_of(job, name, folder))}


def log_of(job: str, name: str, folder: Path) -> Path:
    return next((folder / name / job.replace(" ", "-")).iterdir())


def cpu_s(log: Path) -> float:
    """Of all tasks of the application."""
    events = (line.event for line in read_lines(find_log(log), allow_truncated=False))
    return float(sum((event.get("Task Metrics") or {}).get("Executor CPU Time", 0) for event in events)) / 1e9


def predicted(log: Path) -> tuple[tuple[Cell, ...], ...]:
    """The rows of what-if for stock Spark and for dag, at the memory of the run."""
    scenario = CachingScenario(
        verb="whatif",
        policies=("spark", "dag"),
        capacities=("recorded",),
        trace=str(log),
        miss="level",
        profile="online",
    )
    return run(scenario, quiet=True).tables[0].rows


def row_of(job: str, folder: Path) -> tuple[Cell, ...]:
    done = {name: run_job(job, name, folder) for name in RUNS}
    if len({each["checksum"] for each in done.values()}) > 1:
        raise AssertionError(f"{job}: results differ: {done}")
    stock, dag = predicted(log_of(job, "stock", folder))
    ratios = [each["cpu_s"] / done["stock"]["cpu_s"] for each in list(done.values())[1:]]
    counts = done["dag"]["counts"]
    return (
        job,
        done["stock"]["cpu_s"],
        *ratios,
        found_share(log_of(job, "stock", folder)),
        stock[3],
        share(counts),
        dag[3],
        dag[10],
    )


def found_share(log: Path) -> float:
    from takeup.caching.traces.spark_event_log import read_event_log

    recorded = read_event_log(log)
    return recorded.num_found / max(1, recorded.num_reads)


def share(counts: Mapping[str, Any]) -> float:
    return float(counts["hits"] / max(1, counts["accesses"]))


def measure(names: list[str], folder: Path) -> Report:
    rows = tuple(row_of(job, folder) for job in names)
    again, dag, log = (sum(float(str(row[place])) for row in rows) / len(rows) for place in (2, 3, 4))
    errors = [abs(float(str(row[here])) - float(str(row[here + 1]))) for row in rows for here in (5, 7)]
    checks = (
        Check.at_most("mean task CPU of dag to stock", dag, MEAN_BAR),
        Check.at_most("mean task CPU of dag with an earlier log to stock", log, LOG_BAR),
        Check.at_most("largest error of predicted hits", max(errors), HITS_BAR),
    )
    notes = (
        f"Versions: {versions(('takeup', 'pyspark'))}. local[2], one round; stock again in the mean: {again:.3f}.",
        "Memory for blocks in MB: " + ", ".join(f"{job} {JOBS[job][1]}" for job in names) + ".",
    )
    scenario = {"command": "python -m benchmarks.caching spark-everyday", "jobs": names}
    table = Table("Task CPU to stock, and hits with their prediction", COLUMNS, rows)
    return Report("Caching: everyday jobs on Spark, cold", "caching", scenario, 0, (table,), checks=checks, notes=notes)


def main() -> int:
    parser = options_of(__doc__)
    parser.add_argument("--only", nargs="*", choices=list(JOBS), default=list(JOBS), help="only these jobs")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        report = measure(options.only, Path(folder))
    return publish(report, "caching-everyday-spark", options)
