"""Reports of training: what tables and charts say is what plans and timelines hold."""

from __future__ import annotations

from pathlib import Path

import pytest

from takeup.core.render import to_text, write
from takeup.core.report import Report, Table
from takeup.training.pipelines.planners.adaptra import Adaptra
from takeup.training.pipelines.planners.baselines import OneFOneB
from takeup.training.pipelines.schedule import PipelinePlan, Timeline
from takeup.training.pipelines.timing.evaluation import timeline_of
from takeup.training.report import (
    MOST_SPANS,
    comparison_bars,
    comparison_table,
    delay_series,
    gantt,
    sampled_table,
    stages_table,
)
from training.pipeline_profiles import slow


def two_plans() -> tuple[list[PipelinePlan], list[Timeline]]:
    profile = slow(4, 12, {0: 20})
    plans = [planner.plan(profile) for planner in (OneFOneB(), Adaptra())]
    return plans, [timeline_of(plan.schedule, plan.profile) for plan in plans]


def column(table: Table, name: str) -> list[object]:
    place = [each.name for each in table.columns].index(name)
    return [row[place] for row in table.rows]


def test_every_stage_has_a_row_with_its_times_and_its_link() -> None:
    table = stages_table(two_plans()[0][1])

    assert column(table, "F") == [10.0] * 4
    assert column(table, "warm-up") == [8, 5, 3, 1]
    assert column(table, "latency to next") == [20.0, 0.0, 0.0, None]
    assert "410 ms per iteration" in table.note
    assert "link 0: 20 ms" in table.note


def test_planners_stand_side_by_side() -> None:
    table = comparison_table(*two_plans())

    assert column(table, "planner") == ["one_f_one_b", "adaptra"]
    assert column(table, "iteration") == pytest.approx([650, 410])
    assert column(table, "gap") == pytest.approx([100 * (1 - 410 / 650), 0])
    assert column(table, "peak in-flight micro-batches") == [4, 8]
    assert column(table, "fits memory") == [True, True]
    assert column(table, "bubbles") == pytest.approx([100 * (1 - 360 / 650), 100 * (1 - 360 / 410)])


def test_charts_hold_the_same_numbers() -> None:
    plans, _ = two_plans()

    bars, lines = comparison_bars(plans), delay_series({20.0: plans}, "latency of link 0")

    assert [row["iteration"] for row in bars.rows] == pytest.approx([650, 410])
    assert [(row["planner"], row["delay"]) for row in lines.rows] == [("one_f_one_b", 20.0), ("adaptra", 20.0)]
    assert "latency of link 0" in lines.title


def test_a_gantt_chart_has_a_bar_for_every_operation() -> None:
    _, (fused, split) = two_plans()

    first, second = gantt(fused), gantt(split)

    assert (len(first.rows), len(second.rows)) == (4 * 12 * 2, 4 * 12 * 3)
    assert {row["operation"] for row in first.rows} == {"forward", "backward"}
    assert {row["operation"] for row in second.rows} == {"forward", "backward, input", "backward, weights"}
    assert all(float(str(row["time"])) < float(str(row["until"])) for row in second.rows)
    assert max(float(str(row["until"])) for row in second.rows) == pytest.approx(410)


def test_a_very_large_chart_shows_its_beginning_and_says_so() -> None:
    plan = OneFOneB().plan(slow(8, 256, {}))

    chart = gantt(timeline_of(plan.schedule, plan.profile))

    assert len(chart.rows) == MOST_SPANS
    assert chart.note == f"The first {MOST_SPANS} of {8 * 256 * 2} operations."


def test_samples_are_shown_in_milliseconds() -> None:
    table = sampled_table([("adaptra", 0.4, 0.41, 0.405, 0.45)])

    assert table.rows == (("adaptra", 400.0, 410.0, 405.0, 450.0),)


def test_all_of_it_can_be_drawn(tmp_path: Path) -> None:
    plans, timelines = two_plans()
    tables = (stages_table(plans[1]), comparison_table(plans, timelines))
    report = Report("Training", "training", {}, 1, tables, (gantt(timelines[1]), comparison_bars(plans)))

    paths = write(report, tmp_path, ("svg",))

    assert "adaptra" in to_text(report)
    assert all(path.stat().st_size > 0 for path in paths)
