"""A driver program with one session: reads orders as JSON lines, answers on standard output behind the word `answer`.

An order names a workload to run once, or asks for the plug-in's counters. The program ends with its input.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from typing import Any

from pyspark.sql import SparkSession

from benchmarks.caching.spark_workloads.queries import QUERIES
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
    if name in QUERIES:
        return QUERIES[name](session, *arguments)
    owner, _, method = name.partition(".")
    return float(getattr(getattr(_bench(session), owner), method)(_context(session), *arguments))


def _context(session: SparkSession) -> Any:
    return session.sparkContext._jsc.sc()


def _bench(session: SparkSession) -> Any:
    return session._jvm.io.takeup.bench  # type: ignore[union-attr]


def _say(**answer: Any) -> None:
    print("answer " + json.dumps(answer), flush=True)


if __name__ == "__main__":
    main(sys.stdin.readline())
