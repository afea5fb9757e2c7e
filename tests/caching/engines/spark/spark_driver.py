"""A driver program that tests talk to: one line of JSON in, one application, lines of JSON out.

One process runs all applications one after the other, so that only the first pays for the start of a JVM.
"""

from __future__ import annotations

import json
import os
import sys
import time
import urllib.parse
import urllib.request
from collections.abc import Callable
from typing import Any

from pyspark.sql import SparkSession

from takeup.caching.engines.spark import configure, counters

PATIENCE_S = 120.0
QUIET = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.memory": "700m",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.executor.cores": "1",
    "spark.executor.memory": "512m",
    "spark.scheduler.minRegisteredResourcesRatio": "1.0",
    "spark.scheduler.maxRegisteredResourcesWaitingTime": "120s",
    "spark.executor.extraJavaOptions": os.environ["SPARK_SUBMIT_OPTS"],  # what the driver has
    "spark.memory.fraction": "0.12",
    "spark.locality.wait": "0",
}


def say(**answer: Any) -> None:
    print("answer " + json.dumps(answer), flush=True)


def read(session: SparkSession, page: str) -> str:
    """A page of the application's own web server."""
    address = urllib.parse.urlsplit(session.sparkContext.uiWebUrl or "")
    with urllib.request.urlopen(f"http://127.0.0.1:{address.port}{page}", timeout=60) as answer:
        return str(answer.read().decode())


def run(order: dict[str, Any]) -> None:
    """An order: `calls` are static methods of the workloads with their arguments.

    Each is an application of its own, except that one that `stays` goes on with the next order.
    """
    session, stays = SparkSession.getActiveSession() or begin(order), False
    try:
        answer = work(session, order)
        stays = bool(order.get("stays"))
    finally:
        if not stays:
            session.stop()
            SparkSession.builder._options.clear()
    say(**answer)  # by now what Spark writes at the end is written


def begin(order: dict[str, Any]) -> SparkSession:
    builder = SparkSession.builder.appName("takeup test").master(order["master"])
    for name, value in {**QUIET, **order.get("conf", {})}.items():
        builder = builder.config(name, value)
    if order.get("policy"):
        builder = configure(
            builder, order["policy"], order.get("profile"), order.get("counters_file"), bool(order.get("prefetch"))
        )
    for name, value in order.get("overrides", {}).items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def work(session: SparkSession, order: dict[str, Any]) -> dict[str, Any]:
    """What came of the calls. `until` and `reach` wait until a counter is at most, or at least, a number."""
    workloads = session._jvm.io.takeup.bench.Workloads  # type: ignore[union-attr]
    context = session.sparkContext._jsc.sc()
    say(running=True)
    results = []
    for name, *arguments in order["calls"]:
        if name == "sleep":
            time.sleep(arguments[0])
        elif name == "until":
            wait(lambda name, most: getattr(counters(session), name) <= most, *arguments)
        elif name == "reach":
            wait(lambda name, least: getattr(counters(session), name) >= least, *arguments)
        else:
            results.append(getattr(workloads, name)(context, *arguments))
    counts = counters(session) if order.get("policy") else None
    named = {} if counts is None else {n: getattr(counts, n) for n in counts.__slots__}
    return {"results": results, "counts": named, "page": read(session, order["page"]) if "page" in order else ""}


def wait(is_so: Callable[[str, int], bool], name: str, number: int) -> None:
    """The driver and executors hear of what happened a little later, on a busy machine much later."""
    deadline_s = time.monotonic() + PATIENCE_S
    while not is_so(name, number) and time.monotonic() < deadline_s:
        time.sleep(0.05)


def main() -> None:
    for line in sys.stdin:
        order = json.loads(line)
        try:
            run(order)
        except Exception as error:
            say(error=f"{type(error).__name__}: {error}"[:600])


if __name__ == "__main__":
    main()
