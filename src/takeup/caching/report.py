"""Results of caching runs as a report: hit ratio, effective hit ratio, time, bytes, evictions and broadcasts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from takeup.caching.model import CachingResult, Workload
from takeup.core.report import Cell, Column, Report, Series, Table
from takeup.core.units import format_bytes

COLUMNS = (
    *(Column("policy"), Column("cache", "%", digits=1), Column("hits"), Column("effective")),
    *(
        Column("time", "s", digits=1),
        Column("ratio"),
        Column("read", "MB", digits=0),
        Column("written", "MB", digits=0),
    ),
    *map(Column, ("evicted", "broadcast", "recomputed")),
    Column("inactive", digits=2),
)
WHATIF_COLUMNS = (
    *(Column("policy"), Column("memory", "MB", digits=1), Column("cache", "%", digits=1)),
    *map(Column, ("hits", "least", "most", "recomputed")),
    *(Column("read", "MB", digits=1), Column("written", "MB", digits=1), Column("task time", "s", digits=1)),
    *map(Column, ("ratio", "least", "most")),
)
OFFLINE = ("belady",)  # they know what no engine can know
NEGLIGIBLE_SHARE = 0.02  # of the task time: less than what two runs of one application differ by


def job_report(
    results: Sequence[CachingResult],
    working_set_bytes: int,
    title: str,
    scenario: Mapping[str, object],
    seed: int,
    notes: tuple[str, ...] = (),
) -> Report:
    """One table of all results, one chart of both hit ratios and one of the time, against the size of the cache."""
    first = {result.capacity_bytes: result for result in reversed(results)}
    rows = tuple(_row(result, first[result.capacity_bytes], working_set_bytes) for result in results)
    note = (
        f"cache: share of the working set of {format_bytes(working_set_bytes)}; hits and effective hits: per access; "
        f"ratio: of the time to that of {results[0].policy}; inactive: share of bytes in memory without a later read"
    )
    series = _charts(results, working_set_bytes) if len({r.capacity_bytes for r in results}) > 1 else _bars(results)
    return Report(
        title,
        "caching",
        scenario,
        seed,
        (Table("Policies by size of the cache", COLUMNS, rows, note),),
        series,
        notes=notes,
    )


def report_of(result: CachingResult) -> Report:
    """What a policy did with one size of the cache."""
    policy, _, *rest = _row(result, result, result.capacity_bytes)
    columns = (COLUMNS[0], Column("cache", "MB", digits=1), *COLUMNS[2:])
    note = "hits and effective hits: per access; inactive: share of bytes in memory without a later read"
    table = Table("Result", columns, ((policy, result.capacity_bytes / 1e6, *rest),), note)
    return Report(f"{policy} on {result.workload}", "caching", {}, 0, (table,), _bars([result]))


def _row(result: CachingResult, first: CachingResult, working_set_bytes: int) -> tuple[Cell, ...]:
    return (
        result.policy,
        100 * result.capacity_bytes / working_set_bytes,
        result.hit_share,
        result.effective_hit_share,
        result.makespan_s,
        result.makespan_s / first.makespan_s if first.makespan_s else None,
        result.read_bytes / 1e6,
        result.written_bytes / 1e6,
        result.num_evictions,
        result.num_broadcasts,
        result.num_recomputed,
        result.inactive_share,
    )


def _charts(results: Sequence[CachingResult], working_set_bytes: int) -> tuple[Series, ...]:
    ratios: list[dict[str, Cell]] = []
    times: list[dict[str, Cell]] = []
    for result in results:
        point: dict[str, Cell] = {"policy": result.policy, "cache": 100 * result.capacity_bytes / working_set_bytes}
        ratios.append({**point, "metric": "hit ratio", "ratio": result.hit_share})
        ratios.append({**point, "metric": "effective hit ratio", "ratio": result.effective_hit_share})
        times.append({**point, "time": result.makespan_s})
    name = results[0].workload
    hits = Series(f"Hits on {name}", "cache", "ratio", tuple(ratios), "policy", "metric", x_unit="% of working set")
    time = Series(f"Time of {name}", "cache", "time", tuple(times), "policy", x_unit="% of working set", y_unit="s")
    return hits, time


def _bars(results: Sequence[CachingResult]) -> tuple[Series, ...]:
    rows: list[dict[str, Cell]] = []
    for result in results:
        rows.append({"policy": result.policy, "metric": "hit ratio", "ratio": result.hit_share})
        rows.append({"policy": result.policy, "metric": "effective hit ratio", "ratio": result.effective_hit_share})
    return (Series(f"Hits on {results[0].workload}", "policy", "ratio", tuple(rows), "policy", "metric", kind="bar"),)


@dataclass(frozen=True, slots=True)
class Prediction:
    """A policy with some memory: the expected result first, then those under other assumptions."""

    policy: str
    pool_bytes: int
    results: tuple[CachingResult, ...]

    def ratios(self, base: Prediction) -> list[float]:
        """Task time compared with `base`, assumption by assumption."""
        pairs = zip(self.results, base.results, strict=True)
        return [ours.task_time_s / theirs.task_time_s if theirs.task_time_s else 1.0 for ours, theirs in pairs]


def whatif_report(
    predictions: Sequence[Prediction],
    workload: Workload,
    title: str,
    scenario: Mapping[str, object],
    recorded: tuple[int, int, int],
    notes: tuple[str, ...],
) -> Report:
    """Predicted hits, recomputation, bytes and task time with their ranges, and whether a policy gains anything.

    `recorded`: reads that found their block in memory in the recorded run, all reads, and the memory of that run.
    """
    whole = workload.working_set_bytes
    first = {prediction.pool_bytes: prediction for prediction in reversed(predictions)}
    rows = tuple(_whatif_row(each, first[each.pool_bytes], whole) for each in predictions)
    note = (
        f"cache: share of the {format_bytes(whole)} alive at the same time; hits: per read of a block that had been "
        f"made; ratio: of the task time to that of {predictions[0].policy}; least, most: under other assumptions "
        "on the memory that tasks use and on how much of the future is known"
    )
    table = Table("Predicted by policy and memory", WHATIF_COLUMNS, rows, note)
    verdicts = tuple(
        _verdict(first[size], predictions) for size in dict.fromkeys(each.pool_bytes for each in predictions)
    )
    series = _charts([each.results[0] for each in predictions], whole)
    found = tuple(_compared_with_record(first.get(recorded[2]), recorded))
    return Report(title, "caching", scenario, 0, (table,), series, notes=(*verdicts, *found, *notes))


def _whatif_row(prediction: Prediction, base: Prediction, whole_bytes: int) -> tuple[Cell, ...]:
    expected, ratios = prediction.results[0], prediction.ratios(base)
    hits = [result.hit_share for result in prediction.results]
    return (
        prediction.policy,
        prediction.pool_bytes / 1e6,
        100 * prediction.pool_bytes / whole_bytes,
        expected.hit_share,
        min(hits),
        max(hits),
        expected.num_recomputed,
        expected.read_bytes / 1e6,
        expected.written_bytes / 1e6,
        expected.task_time_s,
        ratios[0],
        min(ratios),
        max(ratios),
    )


def _verdict(base: Prediction, predictions: Sequence[Prediction]) -> str:
    """What the best policy that can be deployed gains over the first one, at one size."""
    others = [each for each in predictions if each.pool_bytes == base.pool_bytes and each.policy not in OFFLINE]
    best = min(others, key=lambda each: each.ratios(base)[0])
    ratios, memory = best.ratios(base), format_bytes(base.pool_bytes)
    if ratios[0] > 1 - NEGLIGIBLE_SHARE:
        return f"{memory}: nothing to gain, no policy saves {NEGLIGIBLE_SHARE:.0%} of the task time of {base.policy}"
    return (
        f"{memory}: {best.policy} saves {1 - ratios[0]:.0%} of the task time of {base.policy} "
        f"({1 - max(ratios):.0%} to {1 - min(ratios):.0%})"
    )


def _compared_with_record(predicted: Prediction | None, recorded: tuple[int, int, int]) -> Iterator[str]:
    num_found, num_reads, pool_bytes = recorded
    if not num_reads:
        yield "the log does not say which reads found their block; set spark.eventLog.logBlockUpdates.enabled=true"
        return
    share = num_found / num_reads
    yield f"in the recorded run {num_found} of {num_reads} reads ({share:.3f}) found their block in memory"
    if predicted is not None and predicted.policy == "spark":
        error = predicted.results[0].hit_share - share
        yield f"for its memory of {format_bytes(pool_bytes)} the policy 'spark' is off by {error:+.3f} in the hit ratio"
