"""The Spark plug-in on a real cluster: `python -m benchmarks.caching spark-engine [--starts N] [--only NAME ...]`.

A standalone master and two workers on loopback. Stock Spark, without the plug-in, and every policy have an application
of their own with two executors; all are started and warmed up, then they take turns, in an order that turns around from
round to round; then all are started anew. Ratios are to stock in the same round: the median over the rounds of a start,
the mean over the starts, which differ by a few percent even where they do the same. CPU and bytes are of the executors'
whole processes, so collection of garbage, compilation and the plug-in's own threads count. CPU and wall time are those
at one pace of the machine, which is watched meanwhile (see spark_workloads/paced.py). With `--keep FOLDER` rounds
are added to those that the folder holds, so that a long measurement can be made in parts; every part starts new
applications, another one first. Exit code 1 if a bar is missed.
"""

from __future__ import annotations

import argparse
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from statistics import geometric_mean, mean

from benchmarks.caching.spark_workloads.application import JAVA, SETTINGS
from benchmarks.caching.spark_workloads.intervals import geometric_interval, in_words
from benchmarks.caching.spark_workloads.paced import at_one_pace
from benchmarks.caching.spark_workloads.rounds import LEAST, NUM_WARM_UPS, Rounds, measure
from benchmarks.caching.spark_workloads.suite import STOCK, WORKLOADS, Workload, is_stock
from benchmarks.support.dated import machine, result_name
from benchmarks.support.markdown import to_markdown
from native.spark.jar import build_jar, spark_jars
from takeup.caching.engines.spark import jar
from takeup.core.files import write_atomically
from takeup.core.render import to_text
from takeup.core.report import Cell, Check, Column, Report, Table

NEVER_WORSE, LRU_OVERHEAD, VICTIM_US = 1.03, 1.02, 50.0
ZIP_EFFECTIVE, ZIP_STOCK_EFFECTIVE, BROADCASTS = 0.55, 0.05, 1 / 3
NATIVE = Path(__file__).parents[2] / "native" / "spark"
TEST_SOURCES, BENCH_SOURCES = NATIVE / "src" / "test" / "java", NATIVE / "bench" / "java"
Results = Mapping[str, Rounds]
COLUMNS = (
    Column("workload"),
    Column("policy"),
    Column("rounds", "", 0),
    Column("task CPU"),
    Column("executor CPU"),
    Column("95 %"),
    Column("from start"),
    Column("wall"),
    Column("bytes read"),
    Column("hits"),
    Column("effective"),
    Column("made", "", 0),
    Column("at first", "", 0),
    Column("evicted", "", 0),
    Column("broadcast", "", 0),
)
STOCK_COLUMNS = (
    Column("workload"),
    Column("task CPU", "s", 2),
    Column("executor CPU", "s", 2),
    Column("least", "s", 2),
    Column("most", "s", 2),
    Column("from start", "s", 1),
    Column("read", "MB", 1),
    Column("persisted", "MB", 1),
    Column("memory to it"),
)


def rows_of(workload: Workload, results: Results) -> Iterator[tuple[Cell, ...]]:
    """What each policy costs, in ratios to stock, and what it counted in one pass."""
    stock = results[STOCK]
    for policy, rounds in results.items():
        if policy != STOCK:
            yield (
                workload.name,
                policy,
                len(rounds.passes),
                *(rounds.ratio(stock, name) for name in ("task_cpu_s", "executor_cpu_s")),
                in_words(geometric_interval(rounds.by_start(stock, "executor_cpu_s"))),
                mean(rounds.first_cpu_s) / mean(stock.first_cpu_s),
                rounds.ratio(stock, "wall_s"),
                rounds.ratio(stock, "read_bytes"),
                rounds.share("hit_share"),
                rounds.share("effective_hit_share"),
                rounds.per_pass("puts"),
                mean(rounds.first_made) if rounds.first_made else None,
                *(rounds.per_pass(name) for name in ("evictions", "broadcasts")),
            )


def stock_row(workload: Workload, stock: Rounds) -> tuple[Cell, ...]:
    """One pass of stock Spark; least and most CPU of the executors say how much rounds differ by themselves."""
    cpu_s = [one.executor_cpu_s for one in stock.passes.values()]
    return (
        workload.name,
        stock.median("task_cpu_s"),
        stock.median("executor_cpu_s"),
        min(cpu_s),
        max(cpu_s),
        mean(stock.first_cpu_s),
        stock.median("read_bytes") / 1e6,
        stock.median("persisted_bytes") / 1e6,
        stock.median("memory_bytes") / stock.median("persisted_bytes"),
    )


def checks_of(workload: Workload, results: Results) -> Iterator[Check]:
    """Results equal to stock, the bars of the workload, and never worse than stock."""
    stock, name = results[STOCK], workload.name
    sums = {one.checksum for rounds in results.values() for one in rounds.passes.values()}
    yield Check.at_most(f"{name}: different results", len(sums), 1)
    if "lru" in results:
        num_missed = results["lru"].per_pass("recomputed_blocks")
        yield Check.at_least(f"{name}: blocks missed in a pass of stock's order", num_missed, 1)
    for policy, rounds in results.items():
        if is_stock(policy):
            continue
        if policy in workload.task_cpu_bars:
            bar = workload.task_cpu_bars[policy]
            yield Check.at_most(f"{name}: task CPU of {policy} to stock", rounds.ratio(stock, "task_cpu_s"), bar)
        ratio = rounds.ratio(stock, "executor_cpu_s")
        yield Check.at_most(f"{name}: executor CPU of {policy} to stock", ratio, NEVER_WORSE)
        yield Check.at_most(f"{name}: bytes read by {policy} to stock", rounds.ratio(stock, "read_bytes"), NEVER_WORSE)
    if name == "zip" and {"lru", "lerc+admission@profile"} <= results.keys():
        yield from _zip_checks(results)


def _zip_checks(results: Results) -> Iterator[Check]:
    lerc, lru = results["lerc+admission@profile"], results["lru"]
    yield Check.at_least("zip: effective hits of lerc+admission", lerc.share("effective_hit_share"), ZIP_EFFECTIVE)
    yield Check.at_most("zip: effective hits of stock's order", lru.share("effective_hit_share"), ZIP_STOCK_EFFECTIVE)
    share = (lerc.per_pass("broadcasts") or 0) / (lerc.per_pass("evictions") or 1)
    yield Check.at_most("zip: broadcasts of lerc+admission per eviction", share, BROADCASTS)


def overhead_checks(measured: Sequence[Results]) -> Iterator[Check]:
    """What a plug-in costs that leaves Spark's order alone: the mean over the workloads."""
    means = lru_means(measured)
    if means:
        name = f"all: executor CPU of lru to stock, mean over {len(means)} workloads"
        yield Check.at_most(name, geometric_mean(means), LRU_OVERHEAD)


def lru_means(measured: Sequence[Results]) -> list[float]:
    """Of each workload, the mean over its starts."""
    found = (results["lru"].by_start(results[STOCK], "executor_cpu_s") for results in measured if "lru" in results)
    return [geometric_mean(ratios) for ratios in found]


def start_checks(measured: Sequence[Results]) -> Iterator[Check]:
    """Start of the executors and first pass, of all workloads together: one alone differs too much by itself."""
    for policy in ("lru", "dag"):
        pairs = [(results[policy], results[STOCK]) for results in measured if policy in results]
        if pairs:
            ours, stocks = (sum(mean(rounds.first_cpu_s) for rounds in side) for side in zip(*pairs, strict=True))
            name = f"all: executor CPU of {policy} from start to first answer, to stock"
            yield Check.at_most(name, ours / stocks, NEVER_WORSE)


def victim_choices(folder: Path) -> tuple[Table, Check]:
    """How long a choice takes with 100,000 blocks in memory, in one Java process."""
    tests = build_jar(folder / "tests.jar", sorted(TEST_SOURCES.rglob("*.java")))
    command = ["java", "-cp", f"{tests}:{jar()}:{spark_jars()}/*", "io.takeup.spark.VictimBenchmark"]
    answer = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    rows = tuple((policy, float(middle), float(high)) for policy, middle, high in map(str.split, answer.splitlines()))
    columns = (Column("policy"), Column("median", "us", 2), Column("99th percentile", "us", 2))
    check = Check.at_most("a choice among 100,000 blocks, 99th percentile", max(row[2] for row in rows), VICTIM_US)
    return Table("Choice of victims among 100,000 blocks", columns, rows), check


def report_of(measured: Sequence[tuple[Workload, Results]], victims: Table, victim_check: Check, note: str) -> Report:
    """Everything, with what made it."""
    all_results = [results for _, results in measured]
    rows = [row for workload, results in measured for row in rows_of(workload, results)]
    stocks = [stock_row(workload, results[STOCK]) for workload, results in measured]
    checks = [check for workload, results in measured for check in checks_of(workload, results)]
    explanation = (
        "Ratios to stock Spark, which runs without the plug-in; CPU and wall time are at one pace of the machine. "
        "lru: Spark's own order with the plug-in loaded for its counters; "
        "stock@again: stock Spark in a second application, to show how much two that are the same differ; "
        "@profile: the application ran before; @prefetch: blocks come back from disk ahead of their readers. 95 %: the "
        "interval of the mean executor CPU, over starts of the applications or, where all rounds are of one start, "
        "over its rounds. "
        "From start: the executors' start and the first pass; at first: blocks made in the first pass, before anything "
        "was learnt from earlier ones. Bytes read: less than "
        f"{LEAST['read_bytes'] / 1e6:.0f} MB in a pass count as that."
    )
    scenario = {
        "command": "python -m benchmarks.caching spark-engine",
        "settings": dict(SETTINGS),
        "workloads": {workload.name: [*map(str, workload.call), workload.memory_fraction] for workload, _ in measured},
    }
    return Report(
        title="Caching: the Spark plug-in beside stock Spark",
        domain="caching",
        scenario=scenario,
        seed=0,
        tables=(
            Table("Applications on two executors of one core, to stock", COLUMNS, tuple(rows), explanation),
            Table("One pass of stock Spark", STOCK_COLUMNS, tuple(stocks)),
            victims,
        ),
        checks=(*checks, *overhead_checks(all_results), *start_checks(all_results), victim_check),
        notes=(
            f"Spark {version('pyspark')}; passes before the first round, to warm up: {NUM_WARM_UPS}. The "
            "executors compile quickly and not to the utmost, so that rounds are alike, if --java says nothing else. "
            "The data come from fixed seeds.",
            f"The 95 % interval of the mean executor CPU of lru over the workloads, to stock, is "
            f"{in_words(geometric_interval(lru_means(all_results)))}.",
            *([note] if note else []),
        ),
        version=version("takeup"),
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        machine=machine(),
    )


def measure_all(options: argparse.Namespace, folder: Path) -> Report:
    """All chosen workloads, one after the other."""
    bench_jar = build_jar(folder / "bench.jar", sorted(BENCH_SOURCES.rglob("*.java")))
    measured = []
    for workload in WORKLOADS:
        if not options.only or workload.name in options.only:
            policies = tuple(policy for policy in workload.policies if is_chosen(policy, options.policies))
            for _ in range(options.starts):
                results = measure(replace(workload, policies=policies), options.rounds, bench_jar, folder)
            if STOCK in results:
                measured.append((workload, at_one_pace(results)))
    return report_of(measured, *victim_choices(folder), options.note)


def is_chosen(policy: str, names: Sequence[str] | None) -> bool:
    """Stock Spark always runs: it is what everything is compared with."""
    return not names or policy == STOCK or policy in names


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--starts", type=int, default=3, help="how often all applications start anew")
    parser.add_argument("--rounds", type=int, default=2, help="of a start; 0 reports what is kept")
    parser.add_argument("--only", nargs="*", choices=[workload.name for workload in WORKLOADS], help="only these")
    parser.add_argument("--policies", nargs="*", metavar="NAME", help="only these, and stock Spark")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="keep the rounds there, and add to those kept")
    parser.add_argument("--java", default=SETTINGS[JAVA], metavar="OPTIONS", help="for the executors' Java machines")
    parser.add_argument("--note", default="", help="what else ran on the machine; goes into the report")
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="also write the report there as dated markdown")
    options = parser.parse_args(argv)
    if options.starts < 1:
        parser.error(f"--starts is {options.starts}; give 1 or more")
    SETTINGS[JAVA] = options.java
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that the cluster is stopped
    with nullcontext(options.keep) if options.keep else tempfile.TemporaryDirectory() as folder:
        report = measure_all(options, Path(folder))
    print(report.to_json() if options.json else to_text(report))
    if options.out:
        write_atomically(options.out / result_name("caching-engines-spark", report), to_markdown(report))
    return 0 if report.holds else 1
