"""Outcomes as a report: every number of a small one is worked by hand."""

from __future__ import annotations

import math

import pytest

from takeup.core.report import Report
from takeup.serving.experiment import RatePoint, queue_report
from takeup.serving.model import Arrival, Ending, QueueOutcome, Served


def served(number: int, arrival_s: float, end_s: float, ending: Ending = "done", num_loads: int = 0) -> Served:
    arrival = Arrival(number, arrival_s)
    first_s = math.nan if ending == "refused" else arrival_s + 1.0
    return Served(arrival, ending, end_s, arrival_s, first_s, 0, num_loads)


# Two images in 4 and 8 seconds, one request refused, one expired; two instances of two GPUs, busy for 15 of 2 x 20 s.
OUTCOME = QueueOutcome(
    "pairs",
    num_gpus=4,
    gpus_per_instance=2,
    served=(
        served(0, 0.0, 4.0, num_loads=3),
        served(1, 2.0, 10.0),
        served(2, 3.0, 3.0, "refused"),
        served(3, 5.0, 20.0, "expired", num_loads=5),
    ),
    busy_s=15.0,
    num_calls=10,
    num_call_rows=35,
    num_most_waiting=6,
)


def report(*points: RatePoint) -> Report:
    return queue_report(points, "title", {"domain": "serving"}, 7)


def row(table: int, point: RatePoint) -> dict[str, object]:
    made = report(point).tables[table]
    return dict(zip([column.name for column in made.columns], made.rows[0], strict=True))


def test_requests_feel_latency_and_queueing_of_images_that_were_made() -> None:
    felt = row(0, RatePoint(0.5, OUTCOME))

    assert (felt["rate"], felt["design"], felt["GPUs"]) == (0.5, "pairs", 4)
    assert (felt["mean"], felt["p50"]) == (6.0, 6.0)
    assert felt["p95"] == pytest.approx(7.8)
    assert (felt["queueing"], felt["queueing p99"]) == (1.0, 1.0)
    assert felt["done"] == 50.0


def test_gpus_do_what_they_do_in_the_time_they_are_taken() -> None:
    does = row(1, RatePoint(0.5, OUTCOME))

    assert does["images"] == 60 * 2 / (15.0 * 2)
    assert does["busy"] == 100 * 15.0 * 2 / (20.0 * 4)
    assert does["rows"] == 3.5
    assert (does["loads"], does["complete"]) == (1.5, 50.0)
    assert does["most waiting"] == 6


def test_where_nothing_was_made_there_are_no_numbers_and_json_can_still_be_written() -> None:
    nothing = QueueOutcome("x", 1, 1, (served(0, 0.0, 0.0, "refused"),), 0.0, 0, 0)
    made = report(RatePoint(1.0, nothing))

    assert made.tables[0].rows[0][3:] == (None, None, None, None, None, None, 0.0)
    assert made.tables[1].rows[0][2:5] == (0.0, None, None)
    assert made.series[0].rows == ()
    assert Report.from_json(made.to_json()) == made


def test_several_rates_make_lines_and_one_makes_bars() -> None:
    lines, bars = report(RatePoint(0.5, OUTCOME), RatePoint(1.0, OUTCOME)), report(RatePoint(0.5, OUTCOME))

    assert (lines.series[0].kind, lines.series[0].x) == ("line", "rate")
    assert (bars.series[0].kind, bars.series[0].x) == ("bar", "design")
    assert [point["share"] for point in bars.series[0].rows] == ["p50", "p95", "p99"]


def test_the_report_keeps_its_scenario_and_seed() -> None:
    made = report(RatePoint(0.5, OUTCOME))

    assert (made.title, made.domain, made.scenario, made.seed) == ("title", "serving", {"domain": "serving"}, 7)
