"""One application on the cluster, and what it cost there."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql import functions as f

from spark_workloads.suite import STOCK, Workload
from takeup.caching.engines.spark import SparkCounts, build_jar, configure, counters
from takeup.caching.engines.spark.cluster import LocalCluster

__all__ = ["Run", "run_application"]

SOURCES = Path(__file__).parents[2] / "native" / "spark" / "bench" / "java"
SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.memory": "1g",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.executor.cores": "1",
    "spark.executor.memory": "600m",
    "spark.executor.extraJavaOptions": "-XX:+UseSerialGC",
    "spark.locality.wait": "0",
    "spark.scheduler.minRegisteredResourcesRatio": "1.0",
    "spark.sql.shuffle.partitions": "8",
}


@dataclass(frozen=True, slots=True)
class Run:
    """One application under one policy. `counts` is None for stock Spark, which runs without the plug-in."""

    policy: str
    checksum: float
    task_cpu_s: float
    executor_cpu_s: float
    counts: SparkCounts | None


def run_application(cluster: LocalCluster, workload: Workload, policy: str, folder: Path) -> Run:
    """Start a session, run the workload, read all counters, stop."""
    name, _, has_profile = policy.partition("@")
    profile = folder / f"{workload.name}-{name}.profile" if has_profile else None
    session = _session(cluster, workload, name, profile, folder)
    try:
        context: Any = session.sparkContext._jsc.sc()
        bench: Any = session._jvm.io.takeup.bench  # type: ignore[union-attr]
        measures = bench.Measures.start(context)
        checksum = _call(session, bench, context, workload.call)
        context.listenerBus().waitUntilEmpty()
        executor_cpu_s = cluster.executor_cpu_s()
        counts = None if name == STOCK else counters(session)
        return Run(policy, checksum, measures.taskCpuS(), executor_cpu_s, counts)
    finally:
        session.stop()


def _session(
    cluster: LocalCluster, workload: Workload, policy: str, profile: Path | None, folder: Path
) -> SparkSession:
    jars = _bench_jar(folder)
    builder = SparkSession.Builder().master(cluster.address).appName(workload.name).config("spark.jars", str(jars))
    builder._options = dict(builder._options)
    for name, value in {**SETTINGS, "spark.memory.fraction": str(workload.memory_fraction)}.items():
        builder = builder.config(name, value)
    if policy != STOCK:
        builder = configure(builder, policy, profile)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("WARN")
    return session


@functools.cache
def _bench_jar(folder: Path) -> Path:
    return build_jar(folder / "bench.jar", sorted(SOURCES.rglob("*.java")))


def _call(session: SparkSession, bench: Any, context: Any, call: tuple[Any, ...]) -> float:
    name, *arguments = call
    if name == "sql":
        return _sql(session, *arguments)
    owner, _, method = name.partition(".")
    return float(getattr(getattr(bench, owner), method)(context, *arguments))


def _sql(session: SparkSession, num_tables: int, num_rows: int, num_queries: int) -> float:
    """Cached tables, joined and aggregated two by two; adaptive execution submits every stage as a job of its own."""
    tables = [
        session.range(num_rows)
        .select((f.col("id") * 7919 % 1000).alias("key"), (f.xxhash64("id", f.lit(table)) % 1000).alias("value"))
        .repartition(8, "key")
        .cache()
        for table in range(num_tables)
    ]
    total = 0
    for query in range(num_queries):
        left, right = tables[query % num_tables], tables[(query * 3 + 1) % num_tables]
        sums = left.groupBy("key").agg(f.sum("value").alias("left"))
        joined = sums.join(right.groupBy("key").agg(f.max("value").alias("right")), "key")
        total += joined.agg(f.sum(f.col("left") + f.col("right"))).collect()[0][0]
    return float(total)
