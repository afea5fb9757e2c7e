"""Results of caching runs as a report: hit ratio, effective hit ratio, time, bytes, evictions and broadcasts."""

from collections.abc import Mapping, Sequence

from takeup.caching.model import CachingResult, FlatResult
from takeup.core.report import Cell, Column, Report, Series, Table
from takeup.core.units import format_bytes

COLUMNS = (
    Column("policy"),
    Column("cache", "%", digits=1),
    Column("hits"),
    Column("effective"),
    Column("time", "s", digits=1),
    Column("ratio"),
    Column("read", "MB", digits=0),
    Column("written", "MB", digits=0),
    Column("evicted"),
    Column("broadcast"),
    Column("recomputed"),
    Column("inactive", digits=2),
)
FLAT_COLUMNS = (
    Column("policy"),
    Column("cache", "%"),
    Column("hits", digits=4),
    Column("misses", digits=4),
    Column("read", "MB", digits=1),
    Column("evicted"),
)


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


def flat_report(
    results: Sequence[FlatResult],
    working_set_bytes: int,
    title: str,
    scenario: Mapping[str, object],
    seed: int,
    notes: tuple[str, ...] = (),
) -> Report:
    """The miss ratio of a request stream, as a table and as a curve."""
    points: list[dict[str, Cell]] = []
    rows: list[tuple[Cell, ...]] = []
    for result in results:
        cache = 100 * result.capacity_bytes / working_set_bytes
        misses = 1 - result.hit_share
        rows.append((result.policy, cache, result.hit_share, misses, result.read_bytes / 1e6, result.num_evictions))
        points.append({"policy": result.policy, "cache": cache, "miss ratio": misses})
    curve = Series("Miss ratio", "cache", "miss ratio", tuple(points), "policy", x_unit="% of working set")
    note = f"cache: share of the working set of {format_bytes(working_set_bytes)}"
    table = Table("Policies by size of the cache", FLAT_COLUMNS, tuple(rows), note)
    return Report(title, "caching", scenario, seed, (table,), (curve,), notes=notes)
