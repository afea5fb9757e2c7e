"""The Spark plug-in on a real cluster: `python benchmarks/caching_engines_spark.py [--rounds N] [--only NAME ...]`.

Starts a standalone master and two workers on loopback. Every workload runs under stock Spark, without the plug-in, and
under the policies, in alternating rounds; ratios are of medians. Exit code 1 if a bar is missed.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from statistics import median

from dated import machine, result_name
from spark_workloads.application import SETTINGS, Run, run_application
from spark_workloads.suite import STOCK, WORKLOADS, Workload

from takeup.caching.engines.spark import build_jar, jar
from takeup.caching.engines.spark.cluster import LocalCluster
from takeup.caching.engines.spark.plugin_jar import spark_jars
from takeup.core.files import write_atomically
from takeup.core.render import to_markdown, to_text
from takeup.core.report import Cell, Check, Column, Report, Table

NEVER_WORSE, LRU_OVERHEAD, VICTIM_US = 1.03, 1.02, 50.0
ZIP_EFFECTIVE, ZIP_STOCK_EFFECTIVE, BROADCASTS = 0.55, 0.05, 1 / 3
TEST_SOURCES = Path(__file__).parents[1] / "native" / "spark" / "src" / "test" / "java"
COLUMNS = (
    Column("workload"),
    Column("policy"),
    Column("hits"),
    Column("effective"),
    Column("made", "", 0),
    Column("task CPU", "s", 2),
    Column("ratio"),
    Column("executor CPU", "s", 1),
    Column("ratio of it"),
    Column("evicted", "", 0),
    Column("broadcast", "", 0),
)


class Median:
    """The runs of one workload under one policy."""

    def __init__(self, runs: Sequence[Run]) -> None:
        self.runs = runs
        self.task_cpu_s = median(run.task_cpu_s for run in runs)
        self.executor_cpu_s = median(run.executor_cpu_s for run in runs)

    def count(self, name: str) -> float | None:
        """The median of a counter; None where the plug-in did not run."""
        values = [getattr(run.counts, name) for run in self.runs if run.counts is not None]
        return float(median(values)) if values else None


def measure(workload: Workload, cluster: LocalCluster, num_rounds: int, folder: Path) -> dict[str, Median]:
    """All policies in every round, the order turned around from round to round."""
    for policy in workload.policies:
        if "@" in policy:
            run_application(cluster, workload, policy, folder)
    runs: dict[str, list[Run]] = {policy: [] for policy in workload.policies}
    for number in range(num_rounds):
        for policy in workload.policies[:: -1 if number % 2 else 1]:
            runs[policy].append(run_application(cluster, workload, policy, folder))
            print(f"{workload.name}: {policy}, round {number + 1}", file=sys.stderr)
    return {policy: Median(list(of_policy)) for policy, of_policy in runs.items()}


def rows_of(workload: Workload, results: dict[str, Median]) -> Iterator[tuple[Cell, ...]]:
    stock = results[STOCK]
    for policy, result in results.items():
        yield (
            workload.name,
            policy,
            result.count("hit_share"),
            result.count("effective_hit_share"),
            result.count("puts"),
            result.task_cpu_s,
            result.task_cpu_s / stock.task_cpu_s,
            result.executor_cpu_s,
            result.executor_cpu_s / stock.executor_cpu_s,
            result.count("evictions"),
            result.count("broadcasts"),
        )


def checks_of(workload: Workload, results: dict[str, Median]) -> Iterator[Check]:
    """Results equal to stock, the bars of the workload, and never worse than stock."""
    stock, name = results[STOCK], workload.name
    sums = {run.checksum for result in results.values() for run in result.runs}
    yield Check.at_most(f"{name}: different results", len(sums), 1)
    for policy in sorted(workload.task_cpu_bars.keys() & results.keys()):
        ratio = results[policy].task_cpu_s / stock.task_cpu_s
        yield Check.at_most(f"{name}: task CPU of {policy} to stock", ratio, workload.task_cpu_bars[policy])
    for policy, result in results.items():
        if policy != STOCK:
            bar = LRU_OVERHEAD if policy == "lru" else NEVER_WORSE
            ratio = result.executor_cpu_s / stock.executor_cpu_s
            yield Check.at_most(f"{name}: executor CPU of {policy} to stock", ratio, bar)
    if name == "zip" and {"lru", "lerc+admission@profile"} <= results.keys():
        yield from _zip_checks(results)


def _zip_checks(results: dict[str, Median]) -> Iterator[Check]:
    lerc, lru = results["lerc+admission@profile"], results["lru"]
    yield Check.at_least("zip: effective hits of lerc+admission", lerc.count("effective_hit_share"), ZIP_EFFECTIVE)
    yield Check.at_most("zip: effective hits of stock's order", lru.count("effective_hit_share"), ZIP_STOCK_EFFECTIVE)
    share = (lerc.count("broadcasts") or 0) / max(1, lerc.count("evictions") or 0)
    yield Check.at_most("zip: broadcasts of lerc+admission per eviction", share, BROADCASTS)


def victim_choices(folder: Path) -> tuple[Table, Check]:
    """How long a choice takes with 100,000 blocks in memory, in one Java process."""
    tests = build_jar(folder / "tests.jar", sorted(TEST_SOURCES.rglob("*.java")))
    command = ["java", "-cp", f"{tests}:{jar()}:{spark_jars()}/*", "io.takeup.spark.VictimBenchmark"]
    answer = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    rows = tuple((policy, float(middle), float(high)) for policy, middle, high in map(str.split, answer.splitlines()))
    columns = (Column("policy"), Column("median", "us", 2), Column("99th percentile", "us", 2))
    check = Check.at_most("a choice among 100,000 blocks, 99th percentile", max(row[2] for row in rows), VICTIM_US)
    return Table("Choice of victims among 100,000 blocks", columns, rows), check


def report_of(options: argparse.Namespace) -> Report:
    chosen = [
        replace(workload, policies=tuple(policy for policy in workload.policies if is_chosen(policy, options.policies)))
        for workload in WORKLOADS
        if not options.only or workload.name in options.only
    ]
    rows: list[tuple[Cell, ...]] = []
    checks: list[Check] = []
    with tempfile.TemporaryDirectory() as name, LocalCluster() as cluster:
        folder = Path(name)
        victims, check = victim_choices(folder)
        for workload in chosen:
            results = measure(workload, cluster, options.rounds, folder)
            rows += rows_of(workload, results)
            checks += checks_of(workload, results)
    note = (
        "ratio: to stock Spark, which runs without the plug-in; lru: Spark's own order with the plug-in loaded for its "
        "counters; @profile: the application ran before. Executor CPU is of the whole process, start included."
    )
    scenario = {
        "command": "python benchmarks/caching_engines_spark.py",
        "num_rounds": options.rounds,
        "settings": dict(SETTINGS),
        "workloads": {workload.name: [*map(str, workload.call), workload.memory_fraction] for workload in chosen},
    }
    return Report(
        title="Caching: the Spark plug-in beside stock Spark",
        domain="caching",
        scenario=scenario,
        seed=0,
        tables=(Table("Applications on two executors of one core", COLUMNS, tuple(rows), note), victims),
        checks=(*checks, check),
        notes=(
            f"Spark {version('pyspark')}, {options.rounds} alternating rounds, medians; the data of every workload "
            "come from fixed seeds.",
        ),
        version=version("takeup"),
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        machine=machine(),
    )


def is_chosen(policy: str, names: Sequence[str] | None) -> bool:
    """Stock Spark always runs: it is what everything is compared with."""
    return not names or policy == STOCK or policy in names


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3, help="how often everything runs")
    parser.add_argument("--only", nargs="*", choices=[workload.name for workload in WORKLOADS], help="only these")
    parser.add_argument("--policies", nargs="*", metavar="NAME", help="only these, and stock Spark")
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="also write the report there as dated markdown")
    options = parser.parse_args(argv)
    report = report_of(options)
    print(report.to_json() if options.json else to_text(report))
    if options.out:
        write_atomically(options.out / result_name("caching-engines-spark", report), to_markdown(report))
    return 0 if report.holds else 1


if __name__ == "__main__":
    sys.exit(main())
