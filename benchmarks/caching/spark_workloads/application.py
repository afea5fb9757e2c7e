"""One application on the cluster: a driver program of its own that runs a workload as often as asked."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from benchmarks.caching.spark_workloads.pace import Pace
from benchmarks.caching.spark_workloads.suite import Workload, is_stock
from support.spark_cluster import LocalSparkCluster
from takeup.caching.engines.spark import SparkCounts

PROGRAM = Path(__file__).parent / "driver.py"
JAVA = "spark.executor.extraJavaOptions"
SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.memory": "1g",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.cores.max": "2",
    "spark.executor.cores": "1",
    "spark.executor.memory": "600m",
    JAVA: "-XX:+UseSerialGC -XX:TieredStopAtLevel=1",  # or compiling lasts for minutes
    "spark.locality.wait": "0",
    "spark.scheduler.minRegisteredResourcesRatio": "1.0",
    "spark.sql.shuffle.partitions": "8",
}


@dataclass(frozen=True, slots=True)
class Pass:
    """One run of a workload. CPU and bytes read from files and sockets are those of the executors' whole processes.

    `persisted_bytes`: the most that there was to keep, so far; `memory_bytes`: what the executors have for that and for
    execution; `pace_us`: how long a fixed piece of work took meanwhile, 0 if nobody knows.
    """

    checksum: float
    wall_s: float
    task_cpu_s: float
    executor_cpu_s: float
    read_bytes: int
    persisted_bytes: int
    memory_bytes: int
    pace_us: float = 0.0


class Application:
    """A session under one policy, from `with` to its end."""

    def __init__(
        self,
        cluster: LocalSparkCluster,
        workload: Workload,
        policy: str,
        bench_jar: Path,
        profile: Path | None,
        pace: Pace,
    ) -> None:
        self._cluster, self._workload, self._policy = cluster, workload, policy
        self._bench_jar, self._profile, self._pace = bench_jar, profile, pace

    def __enter__(self) -> Application:
        environment = {
            **os.environ,
            "SPARK_LOCAL_IP": "127.0.0.1",
            "PYSPARK_PYTHON": sys.executable,
            "PYTHONPATH": str(PROGRAM.parents[3]),
        }
        with (self._cluster.folder / "drivers.log").open("a") as log:
            self._process = subprocess.Popen(
                [sys.executable, str(PROGRAM)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=environment,
            )
        self._id: str = self._order(self._first_words())["application"]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.communicate()

    def run_once(self) -> Pass:
        """Run the workload; what it persisted is dropped afterwards, unmeasured."""
        cpu_s, read_bytes, began_s = self.cpu_s(), self._read_bytes(), time.monotonic()
        answer = self._order({"do": "run", "call": self._workload.call})
        ended_s = time.monotonic()
        used: dict[str, Any] = {
            "wall_s": ended_s - began_s,
            "pace_us": self._pace.mean_us(began_s, ended_s),
            "executor_cpu_s": self.cpu_s() - cpu_s,
            "read_bytes": self._read_bytes() - read_bytes,
        }
        self._answer()
        return Pass(**answer, **used)

    def counts(self) -> SparkCounts | None:
        """What the plug-in has counted so far; None for stock Spark, which runs without it."""
        return None if is_stock(self._policy) else SparkCounts(**self._order({"do": "count"})["counts"])

    def cpu_s(self) -> float:
        """CPU seconds of the executors, from their start."""
        return self._cluster.executor_cpu_s(self._id)

    def _read_bytes(self) -> int:
        return self._cluster.executor_read_bytes(self._id)

    # ----------------------------------------------------------------------------------------------------------------

    def _first_words(self) -> dict[str, Any]:
        settings = {
            **SETTINGS,
            "spark.jars": str(self._bench_jar),
            "spark.memory.fraction": str(self._workload.memory_fraction),
        }
        policy, _, option = self._policy.partition("@")
        return {
            "master": self._cluster.address,
            "name": f"{self._workload.name} {self._policy}",
            "settings": settings,
            "policy": None if is_stock(policy) else policy,
            "prefetch": option == "prefetch",
            "profile": None if self._profile is None else str(self._profile),
        }

    def _order(self, words: dict[str, Any]) -> dict[str, Any]:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(words) + "\n")
        self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("answer "):
                answer: dict[str, Any] = json.loads(line.removeprefix("answer "))
                return answer
        log = (self._cluster.folder / "drivers.log").read_text("utf-8", "replace")
        raise RuntimeError(f"the driver of {self._workload.name} under {self._policy} ended; its log:\n{log[-2000:]}")
