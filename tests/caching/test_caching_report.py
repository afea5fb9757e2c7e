"""Results as a report: every number of a table is recomputed here from the result it stands for."""

from __future__ import annotations

from takeup.caching.model import CachingResult
from takeup.caching.report import job_report
from takeup.core.report import Report

SCENARIO = {"domain": "caching", "verb": "compare"}


def result(policy: str = "lru", capacity_bytes: int = 400, makespan_s: float = 20.0) -> CachingResult:
    return CachingResult(
        policy=policy,
        workload="zip",
        capacity_bytes=capacity_bytes,
        num_accesses=8,
        num_hits=4,
        num_effective_hits=2,
        num_evictions=5,
        num_broadcasts=3,
        num_refused=1,
        num_recomputed=6,
        read_bytes=2_500_000,
        written_bytes=1_500_000,
        inactive_share=0.25,
        task_time_s=30.0,
        makespan_s=makespan_s,
    )


def report_of(*results: CachingResult) -> Report:
    return job_report(results, 1000, "Title", SCENARIO, 7, ("a note",))


def column(report: Report, name: str) -> list[object]:
    (table,) = report.tables
    place = [heading.name for heading in table.columns].index(name)
    return [row[place] for row in table.rows]


# Job graphs ---------------------------------------------------------------------------------------------------------


def test_the_report_says_where_it_comes_from() -> None:
    report = report_of(result())

    assert (report.title, report.domain, report.seed, report.notes) == ("Title", "caching", 7, ("a note",))
    assert dict(report.scenario) == SCENARIO


def test_a_row_holds_the_numbers_of_a_result() -> None:
    report = report_of(result())
    row = {heading.name: cell for heading, cell in zip(report.tables[0].columns, report.tables[0].rows[0], strict=True)}

    assert row == {
        "policy": "lru",
        "cache": 40.0,
        "hits": 0.5,
        "effective": 0.25,
        "time": 20.0,
        "ratio": 1.0,
        "read": 2.5,
        "written": 1.5,
        "evicted": 5,
        "broadcast": 3,
        "recomputed": 6,
        "inactive": 0.25,
    }


def test_times_are_compared_with_the_first_policy_at_the_same_size() -> None:
    report = report_of(
        result("lru", 400, 20.0), result("lerc", 400, 15.0), result("lru", 800, 10.0), result("lerc", 800, 5.0)
    )

    assert column(report, "ratio") == [1.0, 0.75, 1.0, 0.5]
    assert "ratio: of the time to that of lru" in report.tables[0].note


def test_no_time_at_all_has_no_ratio() -> None:
    assert column(report_of(result(makespan_s=0.0)), "ratio") == [None]


def test_the_size_of_the_working_set_is_in_the_note() -> None:
    assert "share of the working set of 1 kB" in report_of(result()).tables[0].note


def test_one_size_is_drawn_as_bars_of_both_ratios() -> None:
    (bars,) = report_of(result("lru"), result("lerc")).series

    assert (bars.kind, bars.x, bars.y, bars.facet) == ("bar", "policy", "ratio", "metric")
    assert [(row["policy"], row["metric"], row["ratio"]) for row in bars.rows] == [
        ("lru", "hit ratio", 0.5),
        ("lru", "effective hit ratio", 0.25),
        ("lerc", "hit ratio", 0.5),
        ("lerc", "effective hit ratio", 0.25),
    ]


def test_several_sizes_are_drawn_as_curves_of_ratios_and_time() -> None:
    hits, time = report_of(result("lru", 400), result("lru", 800, 10.0)).series

    assert (hits.title, time.title) == ("Hits on zip", "Time of zip")
    assert [(row["cache"], row["time"]) for row in time.rows] == [(40.0, 20.0), (80.0, 10.0)]
    assert len(hits.rows) == 4
    assert time.y_unit == "s"


def test_a_report_survives_its_file() -> None:
    report = report_of(result("lru"), result("lerc", 800))

    assert Report.from_json(report.to_json()) == report
