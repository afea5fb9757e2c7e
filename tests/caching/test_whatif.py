"""What-if: what an event log says about levels, unpersist and memory, and predictions with their range."""

from __future__ import annotations

from pathlib import Path

import pytest

from takeup.caching.experiment import CachingScenario, run
from takeup.caching.model import EngineModel, Workload
from takeup.caching.policies import find_policy
from takeup.caching.simulate.compiled.replay import replay
from takeup.caching.simulate.plain import simulate
from takeup.caching.traces.job_graph import WorkloadBuilder
from takeup.caching.traces.spark_event_log import read_event_log
from takeup.core.report import Report
from takeup.errors import BadInput

DATA = Path(__file__).parent / "data"


def whatif(log: str, **settings: object) -> Report:
    values = {"verb": "whatif", "trace": str(DATA / log), "miss": "level", "profile": "online", **settings}
    return run(CachingScenario.model_validate(values), quiet=True)


def scan(num_blocks: int, num_passes: int, *, spills: bool = False) -> Workload:
    """An RDD of unit blocks is made, then read in order again and again; one job for each pass."""
    builder = WorkloadBuilder("scan")
    for block in range(num_blocks):
        builder.block(block, 1, dataset=0, spills=spills)
        builder.task(outputs=[block], job=0, compute_s=1.0)
    for job in range(1, 1 + num_passes):
        for block in range(num_blocks):
            builder.task(inputs=[block], job=job, compute_s=0.1)
    return builder.build()


# Spark's own rule -----------------------------------------------------------------------------------------------------


def test_a_scan_under_sparks_rule_keeps_what_it_stored_first() -> None:
    model = EngineModel(3, "recompute", profile="online")

    spark, lru = (simulate(find_policy(name), scan(4, 5), model) for name in ("spark", "lru"))

    assert (spark.num_hits, spark.num_evictions) == (3 * 5, 0)
    assert lru.num_hits == 0


def test_a_block_evicts_those_of_other_datasets_and_goes_without_memory_when_they_are_too_few() -> None:
    builder = WorkloadBuilder("two")
    for block, dataset, size_bytes in (("a", 0, 1), ("b", 1, 2), ("b2", 1, 2)):
        builder.block(block, size_bytes, dataset=dataset)
        builder.task(outputs=[block])

    result = simulate(find_policy("spark"), builder.build(), EngineModel(3, "recompute"))

    assert (result.num_evictions, result.num_refused) == (0, 1)


# Storage levels and unpersist -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("spills", [False, True])
def test_a_lost_block_comes_back_as_its_level_says(spills: bool) -> None:
    result = replay(find_policy("spark"), scan(4, 1, spills=spills), EngineModel(3, "level", profile="online"))

    assert (result.num_recomputed, result.read_bytes, result.written_bytes) == ((0, 1, 1) if spills else (1, 0, 0))


def test_the_working_set_is_what_is_alive_at_the_same_time() -> None:
    builder = WorkloadBuilder("days")
    for day in range(4):
        builder.block(day, 10)
        builder.task(outputs=[day])
        if day:
            builder.drop(day - 1)

    workload = builder.build()

    assert workload.working_set_bytes == 20


@pytest.mark.parametrize("engine", [simulate, replay])
def test_unpersisted_blocks_make_room_without_an_eviction(engine: object) -> None:
    builder = WorkloadBuilder("days")
    for day in range(3):
        builder.block(day, 10)
        builder.task(outputs=[day])
        builder.drop(day)

    result = engine(find_policy("spark"), builder.build(), EngineModel(10, "recompute"))  # type: ignore[operator]

    assert (result.num_evictions, result.num_refused) == (0, 0)


# Reports --------------------------------------------------------------------------------------------------------------


def test_a_cached_dataframe_that_fits_has_nothing_to_gain() -> None:
    report = whatif("dataframe.eventlog.gz", policies=("spark", "lrc", "dag"), capacities=("200%",))

    assert "nothing to gain" in report.notes[0]


def test_every_prediction_lies_in_its_range() -> None:
    report = whatif("evict.eventlog.gz", policies=("spark", "lrc", "dag", "belady"), capacities=("40%", "60%", "80%"))

    for row in report.tables[0].rows:
        hits, least_hits, most_hits = row[3:6]
        ratio, least, most = row[10:13]
        assert least_hits <= hits <= most_hits  # type: ignore[operator]
        assert least <= ratio <= most  # type: ignore[operator]


def test_a_log_without_the_memory_of_its_run_needs_a_size() -> None:
    with pytest.raises(BadInput, match="does not say how much memory the run had; give a size"):
        whatif("pagerank.eventlog.gz", policies=("spark",), capacities=("recorded",))


def test_a_log_without_block_updates_says_what_to_set() -> None:
    report = whatif("zip-two-executors.eventlog.gz", policies=("spark", "dag"), capacities=("50%",))

    assert any("spark.eventLog.logBlockUpdates.enabled=true" in note for note in report.notes)


# Pairs of a recorded log and what was measured in that run -----------------------------------------------------------

# Hits and reads that the plug-in counted when the same application ran under `dag` with the same memory.
DAG_RUNS = {
    "everyday-scan.eventlog.gz": (60, 96),
    "everyday-notebook.eventlog.gz": (188, 256),
    "everyday-mixed-levels.eventlog.gz": (160, 192),
    "everyday-sliding-days.eventlog.gz": (264, 272),  # the plug-in gave way
}
STOCK_RUNS = (
    "scan-short-of-memory.eventlog.gz",
    "window-short-of-memory.eventlog.gz",
    "everyday-chain.eventlog.gz",
    *DAG_RUNS,
)


@pytest.mark.parametrize("log", STOCK_RUNS)
def test_the_hits_of_stock_spark_are_predicted_within_five_percent(log: str) -> None:
    recorded = read_event_log(DATA / log)
    measured = recorded.num_found / recorded.num_reads

    predicted = whatif(log, policies=("spark",), capacities=("recorded",)).tables[0].rows[0]

    assert 0 < measured <= 1
    assert predicted[3] == pytest.approx(measured, abs=0.05)


@pytest.mark.parametrize("log", DAG_RUNS)
def test_the_hits_of_the_plug_in_are_predicted_from_the_log_of_stock_spark(log: str) -> None:
    num_hits, num_reads = DAG_RUNS[log]

    predicted = whatif(log, policies=("spark", "dag"), capacities=("recorded",)).tables[0].rows[1]

    assert predicted[3] == pytest.approx(num_hits / num_reads, abs=0.05)


def test_plain_lru_mistakes_a_scan_for_hopeless_and_sparks_rule_does_not() -> None:
    report = whatif(STOCK_RUNS[0], policies=("spark", "lru"), capacities=("recorded",))

    assert [row[3] > 0.3 for row in report.tables[0].rows] == [True, False]  # type: ignore[operator]
