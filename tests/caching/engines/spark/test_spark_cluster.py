"""The plug-in in real executors of a standalone cluster on this machine, and what can go wrong there."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from caching.engines.spark.quick_start import QUICK_START
from native.spark.jar import build_jar
from support.spark_cluster import LocalSparkCluster
from takeup.caching.engines.spark.event_log_profile import write_profile
from takeup.caching.engines.spark.plugin_jar import jar

pytestmark = [
    pytest.mark.engine,
    pytest.mark.skipif(shutil.which("javac") is None, reason="needs java and javac of a JDK 17"),
    pytest.mark.timeout(900),
    pytest.mark.xdist_group("spark"),
]
HERE = Path(__file__).parent
BENCH_SOURCES = HERE.parents[3] / "native" / "spark" / "bench" / "java"
NUM_BLOCKS, NUM_VALUES, NUM_ITERATIONS = 40, 131_072, 4
ITERATE = ["iterate", NUM_BLOCKS, NUM_VALUES, 2, NUM_ITERATIONS, "MEMORY_ONLY"]
CLASSES = ["storeClasses", 8]
BOTH = ["reach", "installed", 2]  # a cluster begins to work with one executor
NUM_JOBS = NUM_ITERATIONS + 1


@dataclass(slots=True)
class Driver:
    """The driver program, and how to talk to it."""

    process: subprocess.Popen[str]
    cluster: LocalSparkCluster

    def start(self, policy: str | None, *calls: list[Any], **order: Any) -> None:
        """Begin an application and come back when its work begins."""
        words = {"master": self.cluster.address, "policy": policy, "calls": calls, **order}
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(words) + "\n")
        self.process.stdin.flush()
        assert self.answer()["running"]

    def answer(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("answer "):
                answer: dict[str, Any] = json.loads(line.removeprefix("answer "))
                assert "error" not in answer, answer["error"]
                return answer
        raise AssertionError("the driver program ended")

    def run(self, policy: str | None, *calls: list[Any], **order: Any) -> dict[str, Any]:
        self.start(policy, *calls, **order)
        return self.answer()


@pytest.fixture(scope="module")
def bench_jar(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("pyspark", reason="needs pyspark: pip install 'takeup[spark]'")
    return build_jar(
        tmp_path_factory.mktemp("bench") / "bench.jar",
        [BENCH_SOURCES / "io/takeup/bench/Blocks.java", BENCH_SOURCES / "io/takeup/bench/Workloads.java"],
    )


@pytest.fixture(scope="module")
def driver(bench_jar: Path) -> Iterator[Driver]:
    """One cluster and one driver program for all tests here."""
    submit = f"--jars {bench_jar} pyspark-shell"
    quick = {"SPARK_SUBMIT_OPTS": QUICK_START, "SPARK_DAEMON_JAVA_OPTS": QUICK_START}
    local = {"SPARK_LOCAL_IP": "127.0.0.1", "PYTHONWARNINGS": ""}
    environment = {**os.environ, **quick, **local, "PYSPARK_SUBMIT_ARGS": submit}
    with (
        LocalSparkCluster(environment=quick) as cluster,
        (cluster.folder / "driver.log").open("w") as log,
        subprocess.Popen(
            [sys.executable, str(HERE / "spark_driver.py")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            env=environment,
            start_new_session=True,
        ) as process,
    ):
        program = Driver(process, cluster)
        program.run(None, ["storeClasses", 1], master="local[1]")  # what the first session says stays with the process
        yield program
        os.killpg(process.pid, signal.SIGKILL)


@dataclass(frozen=True, slots=True)
class StockRun:
    """An application of stock Spark: its checksum, and what its executors and those of nobody were seen to use."""

    checksum: float
    used: tuple[float, int]
    others: list[int]


@pytest.fixture(scope="module")
def stock_run(driver: Driver) -> StockRun:
    """Looked at while it runs, so that no test needs an application only to look at one."""
    driver.start(None, ITERATE, CLASSES)
    cluster, deadline_s, used = driver.cluster, time.monotonic() + 120, (0.0, 0)
    while not all(used) and time.monotonic() < deadline_s:
        used = (cluster.executor_cpu_s("app-"), cluster.executor_read_bytes("app-"))
        time.sleep(0.02)
    others = cluster.executors("app-of-nobody")
    answer = driver.answer()

    assert answer["results"][1] == "[MemoryStore]"
    return StockRun(answer["results"][0], used, others)


@pytest.fixture(scope="module")
def stock(stock_run: StockRun) -> float:
    """What stock Spark computes."""
    return stock_run.checksum


def assert_stock_result_and_our_store(answer: dict[str, Any], stock: float) -> None:
    counts = answer["counts"]
    assert answer["results"] == [stock, "[TakeupStore]"]
    assert counts["installed"] == 2
    assert counts["failures"] == counts["driver_failures"] == 0
    assert counts["evictions"] > 0
    assert 0 < counts["effective_hits"] <= counts["hits"] <= counts["accesses"]
    assert counts["puts"] >= NUM_BLOCKS * (NUM_ITERATIONS + 2)
    assert counts["task_cpu_s"] > 0


@pytest.mark.parametrize("policy", ["lru", "dag"])
def test_the_result_is_that_of_stock_spark_and_the_store_is_ours(driver: Driver, stock: float, policy: str) -> None:
    assert_stock_result_and_our_store(driver.run(policy, BOTH, ITERATE, CLASSES), stock)


@pytest.mark.parametrize("policy", ["lrc", "mrd", "furthest_next_use+admission"])
def test_the_other_policies_work_in_one_process_too(driver: Driver, stock: float, policy: str) -> None:
    answer = driver.run(policy, ITERATE, master="local[2]")

    assert answer["results"] == [stock]
    assert answer["counts"]["failures"] == answer["counts"]["driver_failures"] == 0
    assert answer["counts"]["evictions"] > 0


def test_knowing_the_graph_computes_fewer_blocks_than_recency(driver: Driver) -> None:
    by_recency = driver.run("lru", ITERATE, master="local[1]")["counts"]

    by_graph = driver.run("dag", ITERATE, master="local[1]")["counts"]

    assert by_graph["puts"] < by_recency["puts"]
    assert by_graph["hits"] / by_graph["accesses"] > by_recency["hits"] / by_recency["accesses"]


def test_blocks_that_are_read_back_from_disk_displace_few_that_are_as_good(driver: Driver) -> None:
    scan = ["scan", NUM_BLOCKS, NUM_VALUES, 1, 5, "MEMORY_AND_DISK"]
    half = {"spark.memory.fraction": "0.06"}
    expected = driver.run(None, scan, conf=half, master="local[1]")["results"]

    answer = driver.run("dag", scan, conf=half, master="local[1]")

    counts = answer["counts"]
    assert answer["results"] == expected
    assert counts["recomputed_blocks"] > NUM_BLOCKS, counts  # read back, pass after pass
    assert counts["evictions"] < counts["recomputed_blocks"], counts


def test_blocks_come_back_from_disk_before_their_tasks_begin(driver: Driver) -> None:
    back = ["comeBack", NUM_BLOCKS, NUM_VALUES, 2, 30]
    half = {"spark.memory.fraction": "0.12"}
    expected = driver.run(None, back, conf=half, master="local[1]")["results"]

    plain = driver.run("lrc", back, conf=half, master="local[1]")
    ahead = driver.run("lrc", back, conf=half, master="local[1]", prefetch=True)

    assert plain["results"] == ahead["results"] == expected
    assert plain["counts"]["prefetches"] == 0
    assert ahead["counts"]["prefetches"] > 0, ahead
    assert ahead["counts"]["recomputed_blocks"] < plain["counts"]["recomputed_blocks"], (plain, ahead)
    assert ahead["counts"]["failures"] == 0


def test_a_broken_profile_is_ignored_and_made_anew(driver: Driver, stock: float, tmp_path: Path) -> None:
    profile = tmp_path / "profile.json"
    profile.write_text('{"format": 1, "rdds": [')

    first = driver.run("dag", ITERATE, profile=str(profile), master="local[2]")
    second = driver.run("dag", ITERATE, profile=str(profile), master="local[2]")

    assert first["results"] == second["results"] == [stock]
    assert len(json.loads(profile.read_text())["jobs"]) == NUM_JOBS
    assert (first["counts"]["jobs_foretold"], second["counts"]["jobs_foretold"]) == (0, NUM_JOBS)
    assert second["counts"]["jobs_not_foretold"] == 0


def test_the_event_log_of_one_run_is_the_profile_of_the_next(driver: Driver, tmp_path: Path) -> None:
    conf = {"spark.eventLog.enabled": "true", "spark.eventLog.dir": str(tmp_path), "spark.eventLog.compress": "false"}
    driver.run(None, ITERATE, conf={**conf, "spark.eventLog.rolling.enabled": "false"}, master="local[2]")
    (log,) = (path for path in tmp_path.iterdir() if path.is_file() and not path.name.startswith("."))
    write_profile(tmp_path / "profile.json", map(json.loads, log.read_text("utf-8").splitlines()))

    counts = driver.run("dag", ITERATE, profile=str(tmp_path / "profile.json"), master="local[2]")["counts"]

    assert (counts["jobs_foretold"], counts["jobs_not_foretold"]) == (NUM_JOBS, 0)


def test_counters_are_written_at_the_end(driver: Driver, tmp_path: Path) -> None:
    target = tmp_path / "counters.json"

    driver.run("dag", ["scan", 4, 1000, 1, 2, "MEMORY_ONLY"], counters_file=str(target), master="local[2]")

    deadline_s = time.monotonic() + 60
    while not target.exists() and time.monotonic() < deadline_s:
        time.sleep(0.1)
    written = json.loads(target.read_text())
    assert (written["policy"], written["puts"], written["hits"]) == ("dag+admission", 4, 4)


def test_counters_are_on_the_page_that_prometheus_reads(driver: Driver) -> None:
    sink = "spark.metrics.conf.*.sink.prometheusServlet"
    conf = {
        "spark.ui.enabled": "true",
        "spark.ui.port": "0",
        f"{sink}.class": "org.apache.spark.metrics.sink.PrometheusServlet",
        f"{sink}.path": "/metrics/prometheus",
    }

    answer = driver.run("dag", ITERATE, conf=conf, master="local[2]", page="/metrics/prometheus/")

    found = dict(re.findall(r"plugin_io_takeup_spark_TakeupPlugin_(\w+)_Value\{[^}]*\} (\d+)", answer["page"]))
    counts = answer["counts"]
    assert int(found["hits"]) == counts["hits"] > 0
    assert int(found["effective_hits"]) == counts["effective_hits"]
    assert int(found["executors_evictions"]) == counts["evictions"] > 0
    assert {"broadcasts", "recomputed_blocks", "executors_inactive_bytes"} <= found.keys()
    assert "executors_evictions_with_references" in found


def test_what_the_executors_of_one_application_have_used_is_known(stock_run: StockRun) -> None:
    assert stock_run.used > (0, 0)
    assert stock_run.others == []


def test_an_unknown_spark_keeps_its_own_store_and_says_so_in_one_line(driver: Driver, stock: float) -> None:
    log = driver.cluster.folder / "driver.log"
    num_bytes_before = log.stat().st_size

    answer = driver.run("dag", ITERATE, CLASSES, conf={"spark.takeup.assumeVersion": "9.9.9"}, master="local[2]")

    assert answer["results"] == [stock, "[MemoryStore]"]
    assert answer["counts"]["is_active"] is False
    (line,) = re.findall(r"takeup: .*", log.read_bytes()[num_bytes_before:].decode())
    assert line == "takeup: eviction stays Spark's own, because Spark 9.9.9 is not 3.5 or 4.x"


def test_speculative_copies_of_tasks_count_once(driver: Driver, stock: float) -> None:
    conf = {
        "spark.speculation": "true",
        "spark.speculation.interval": "10ms",
        "spark.speculation.multiplier": "1.0",
        "spark.speculation.quantile": "0.1",
        "spark.speculation.minTaskRuntime": "1ms",
    }

    waits = ["until", "driver_groups", 2 * NUM_BLOCKS], ["until", "groups", 4 * NUM_BLOCKS]
    answer = driver.run("lerc", ITERATE, *waits, conf=conf)

    assert answer["results"] == [stock]
    assert answer["counts"]["failures"] == answer["counts"]["driver_failures"] == 0
    assert answer["counts"]["driver_groups"] <= 2 * NUM_BLOCKS  # only what is expected of the next job is open
    assert answer["counts"]["groups"] <= 4 * NUM_BLOCKS  # nor in any of the two executors


def test_blocks_may_be_unpersisted_while_they_are_read(driver: Driver) -> None:
    call = ["unpersistInFlight", 30, NUM_VALUES, 2]

    expected = driver.run(None, call, master="local[2]")["results"]
    answer = driver.run("dag", call, ["until", "driver_groups", 0], ["until", "groups", 0], master="local[2]")

    assert answer["results"] == expected
    assert answer["counts"]["failures"] == answer["counts"]["driver_failures"] == 0
    assert answer["counts"]["driver_groups"] == answer["counts"]["groups"] == 0


def test_blocks_off_the_heap_are_evicted_by_rank_too(driver: Driver, stock: float) -> None:
    conf = {"spark.memory.offHeap.enabled": "true", "spark.memory.offHeap.size": "40m"}

    answer = driver.run("dag", [*ITERATE[:-1], "OFF_HEAP"], conf=conf, master="local[2]")

    assert answer["results"] == [stock]
    assert answer["counts"]["evictions"] > 0
    assert answer["counts"]["failures"] == 0


def test_a_killed_executor_costs_time_but_neither_results_nor_counts(driver: Driver, stock: float) -> None:
    """Before that, the application is one more whose result is that of stock Spark and whose store is ours."""
    policy, cluster = "lerc+admission", driver.cluster
    before = driver.run(policy, BOTH, ITERATE, CLASSES, stays=True)
    assert_stock_result_and_our_store(before, stock)

    used_s = cluster.executor_cpu_s()
    driver.start(policy, ITERATE, ITERATE, ["until", "driver_groups", 6 * NUM_BLOCKS])
    while cluster.executor_cpu_s() < used_s + 0.3:  # until they work on it
        time.sleep(0.02)
    os.kill(cluster.executors()[0], signal.SIGKILL)
    answer = driver.answer()

    assert answer["results"] == [stock, stock]
    assert answer["counts"]["driver_failures"] == 0
    assert answer["counts"]["driver_groups"] <= 6 * NUM_BLOCKS  # nothing but what is expected of the next job


def test_executors_come_and_go_under_dynamic_allocation(driver: Driver, stock: float) -> None:
    conf = {
        "spark.dynamicAllocation.enabled": "true",
        "spark.dynamicAllocation.shuffleTracking.enabled": "true",
        "spark.dynamicAllocation.minExecutors": "0",
        "spark.dynamicAllocation.initialExecutors": "1",
        "spark.dynamicAllocation.executorIdleTimeout": "1s",
        "spark.dynamicAllocation.cachedExecutorIdleTimeout": "1s",
        "spark.executor.cores": "1",
    }

    first = driver.run("dag", ITERATE, conf=conf, stays=True)
    deadline_s = time.monotonic() + 400
    while (left := driver.cluster.executors()) and time.monotonic() < deadline_s:
        time.sleep(0.05)
    second = driver.run("dag", ITERATE)

    assert left == []  # all went, so others came
    assert first["results"] == second["results"] == [stock]
    assert second["counts"]["failures"] == second["counts"]["driver_failures"] == 0


def test_an_executor_without_the_jar_leaves_the_work_to_the_others(
    driver: Driver, stock: float, bench_jar: Path
) -> None:
    """Spark itself does not start an executor that cannot load a plug-in; the application goes on with the rest."""
    shutil.copy(jar(), driver.cluster.folder / "worker-0" / "takeup-spark.jar")
    own_jar = "../../takeup-spark.jar"  # as seen from the folder of an executor: only those of one worker have it

    answer = driver.run(
        "dag",
        ITERATE,
        CLASSES,
        overrides={
            "spark.jars": str(bench_jar),
            "spark.executor.extraClassPath": own_jar,
            "spark.scheduler.minRegisteredResourcesRatio": "0",
        },
    )

    assert answer["results"] == [stock, "[TakeupStore]"]
    assert answer["counts"]["installed"] == 1
