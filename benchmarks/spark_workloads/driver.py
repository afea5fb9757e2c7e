"""A driver program with one session: reads orders as JSON lines, answers on standard output behind the word `answer`.

An order names a workload to run once, or asks for the plug-in's counters. The program ends with its input.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql import functions as f

from takeup.caching.engines.spark import configure, counters


def main(first: str) -> None:
    start = json.loads(first)
    builder = SparkSession.Builder().master(start["master"]).appName(start["name"])
    for name, value in start["settings"].items():
        builder = builder.config(name, value)
    if start["policy"]:
        builder = configure(builder, start["policy"], start["profile"], prefetch=start["prefetch"])
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    measures = _bench(session).Measures.start(_context(session))
    _say(application=session.sparkContext.applicationId)
    _serve(session, measures)
    session.stop()


def _serve(session: SparkSession, measures: Any) -> None:
    for line in sys.stdin:
        order = json.loads(line)
        if order["do"] == "count":
            _say(counts=asdict(counters(session)))
        else:
            _say(**_run_once(session, measures, order["call"]))
            measures.unpersistAll(_context(session))
            _say(is_clean=True)


def _run_once(session: SparkSession, measures: Any, call: list[Any]) -> dict[str, Any]:
    before_s = measures.taskCpuS()
    checksum = _call(session, call)
    _context(session).listenerBus().waitUntilEmpty()
    return {
        "checksum": checksum,
        "task_cpu_s": measures.taskCpuS() - before_s,
        "persisted_bytes": measures.mostPersistedBytes(),
        "memory_bytes": measures.memoryBytes(_context(session)),
    }


def _call(session: SparkSession, call: list[Any]) -> float:
    name, *arguments = call
    if name == "sql":
        return _sql(session, *arguments)
    owner, _, method = name.partition(".")
    return float(getattr(getattr(_bench(session), owner), method)(_context(session), *arguments))


def _sql(session: SparkSession, num_tables: int, num_rows: int, num_queries: int) -> float:
    """Cached tables, joined and aggregated two by two; adaptive execution submits every stage as a job of its own."""
    tables = [_table(session, number, num_rows).cache() for number in range(num_tables)]
    total = 0
    for query in range(num_queries):
        left, right = tables[query % num_tables], tables[(query * 3 + 1) % num_tables]
        sums = left.groupBy("key").agg(f.sum(f.col("value") % 1000).alias("left"))
        joined = sums.join(right.groupBy("key").agg(f.max(f.col("value") % 1000).alias("right")), "key")
        total += joined.agg(f.sum(f.col("left") + f.col("right"))).collect()[0][0]
    return float(total)


def _table(session: SparkSession, number: int, num_rows: int) -> Any:
    """Values that no encoding makes small."""
    value = f.xxhash64("id", f.lit(number))
    return session.range(num_rows, numPartitions=8).select(
        (f.col("id") * 7919 % 1000).alias("key"), value.alias("value")
    )


def _context(session: SparkSession) -> Any:
    return session.sparkContext._jsc.sc()


def _bench(session: SparkSession) -> Any:
    return session._jvm.io.takeup.bench  # type: ignore[union-attr]


def _say(**answer: Any) -> None:
    print("answer " + json.dumps(answer), flush=True)


if __name__ == "__main__":
    main(sys.stdin.readline())
