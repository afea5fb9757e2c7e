"""Reports of edge: what tables and charts say is what the answers, plans and measurements hold."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from edge.offloads import four_devices
from takeup.core.render import to_text, write
from takeup.core.report import Report, Series, Table
from takeup.edge.model import Answer, Instance, Prices, Reason
from takeup.edge.report import (
    comparison_bars,
    comparison_table,
    cpu_gantt,
    decisions_table,
    played_gantt,
    played_table,
    prices_table,
    radio_gantt,
    served_series,
    served_table,
)
from takeup.edge.results import Played, PlayedTask, ResourceUsage, SimulatedTask, SimulationResult
from takeup.edge.traces.generators import paper_setting, radio_tight_setting
from takeup.papers.edge.joint import Joint, Local, MinimumGroups

NAN = float("nan")


def answer(bound_j: float | None = None) -> tuple[Instance, Answer]:
    instance, allocation = four_devices()
    reasons = np.array([Reason.OFFLOADS, Reason.OFFLOADS, Reason.NO_SAVING, Reason.OFFLOADS], np.int8)
    return instance, Answer("by hand", allocation, 0.03, reasons, bound_j)


def column(table: Table, name: str) -> list[object]:
    place = [each.name for each in table.columns].index(name)
    return [row[place] for row in table.rows]


def values(series: Series, key: str) -> list[object]:
    return [row[key] for row in series.rows]


# Answers


def test_every_device_has_a_row_with_its_times_its_cost_and_the_reason() -> None:
    table = decisions_table(*answer(bound_j=0.04))

    assert column(table, "offloads") == [True, True, False, True]
    assert column(table, "subcarriers") == ["0", "1", "", "2, 3"]
    assert column(table, "upload") == [50.0, 50.0, None, 50.0]
    assert column(table, "end") == pytest.approx([120.0, 220.0, None, 320.0])
    assert column(table, "energy") == pytest.approx([10.0, 10.0, 500.0, 20.0])
    assert column(table, "why")[2] == Reason.NO_SAVING.text
    assert "3 of 4 devices offload" in table.note
    assert "at most 25.00% is missing" in table.note


def test_without_a_bound_nothing_is_said_about_a_gap() -> None:
    assert "missing" not in decisions_table(*answer()).note


def test_prices_are_shown_where_there_are_some() -> None:
    _, given = answer()
    table = prices_table(replace(given, prices=Prices(subcarrier_j=0.002, core_j=0.5)))

    assert prices_table(given) is None
    assert table is not None
    assert table.rows == (("subcarrier", 2.0), ("core", 500.0))


def test_policies_are_compared_by_means_and_borrow_the_best_bound() -> None:
    _, good = answer(bound_j=0.04)
    _, weak = answer(bound_j=0.06)
    poor = replace(good, saving_j=0.01, bound_j=None)
    table = comparison_table({"good": [good, weak], "poor": [poor, poor]})

    assert column(table, "accepted") == [3.0, 3.0]
    assert column(table, "saving") == pytest.approx([0.03, 0.01])
    assert column(table, "gap") == pytest.approx([(25 + 50) / 2, (75 + 100 * 5 / 6) / 2])
    assert column(table, "largest gap") == pytest.approx([50.0, 100 * 5 / 6])


def test_without_any_bound_gaps_are_unknown() -> None:
    _, given = answer()

    assert column(comparison_table({"by hand": [given]}), "gap") == [None]


def test_bars_show_energy_and_accepted_devices() -> None:
    instance = paper_setting(np.random.default_rng(1), 6)
    answers = {policy.name: [policy.allocate(instance)] for policy in (Local(), Joint())}
    energy, accepted = comparison_bars(answers)

    assert values(energy, "policy") == ["local", "joint"]
    assert values(energy, "energy")[0] == pytest.approx(float(instance.local_j.sum()))
    assert values(accepted, "accepted") == [0, answers["joint"][0].allocation.num_accepted]


# Plans over time


def test_uploads_have_a_span_on_each_of_their_subcarriers() -> None:
    chart = radio_gantt(*four_devices())

    assert values(chart, "subcarrier") == ["0", "1", "2", "3"]
    assert values(chart, "device") == ["0", "1", "3", "3"]
    assert values(chart, "until") == pytest.approx([50.0] * 4)
    assert chart.note == ""


def test_subcarriers_that_are_wasted_or_free_have_no_span() -> None:
    instance, allocation = four_devices()
    chart = radio_gantt(instance, replace(allocation, owners=np.array([0, -1, 2, 3])))

    assert values(chart, "subcarrier") == ["0", "3"]
    assert chart.note == "2 of 4 subcarriers are not used."


def test_an_upload_begins_at_its_release() -> None:
    instance, allocation = four_devices()
    chart = radio_gantt(replace(instance, releases_s=np.array([0.01, 0.0, 0.0, 0.0])), allocation)

    assert values(chart, "time") == pytest.approx([10.0, 0.0, 0.0, 0.0])


def test_turns_follow_each_other_on_their_core_with_deadlines_marked() -> None:
    chart = cpu_gantt(*four_devices())

    assert values(chart, "core") == ["core 1"] * 3
    assert values(chart, "time") == pytest.approx([100.0, 200.0, 300.0])
    assert values(chart, "deadline") == pytest.approx([3000.0] * 3)


def test_tasks_that_no_core_has_time_for_are_set_apart() -> None:
    instance, allocation = four_devices()
    chart = cpu_gantt(instance, replace(allocation, start_s=np.array([0.1, 0.105, NAN, 0.11])))

    assert values(chart, "core") == ["core 1", "no core, 1", "no core, 2"]


@pytest.mark.parametrize("num_cores", [1, 2, 3])
@pytest.mark.parametrize("seed", range(4))
def test_a_plan_that_keeps_all_constraints_needs_no_more_lanes_than_cores(num_cores: int, seed: int) -> None:
    instance = replace(radio_tight_setting(np.random.default_rng(seed), 10, 8, 2e9), num_cores=num_cores)
    chart = cpu_gantt(instance, Joint().allocate(instance).allocation)

    assert {str(core)[:4] for core in values(chart, "core")} == {"core"}
    assert len(set(values(chart, "core"))) <= num_cores


def test_a_plan_that_ignores_the_cpu_shows_it() -> None:
    instance = paper_setting(np.random.default_rng(0), 8)
    chart = cpu_gantt(instance, MinimumGroups().allocate(instance).allocation)

    assert "no core, 1" in values(chart, "core")


# What happened


def played() -> Played:
    tasks = (
        PlayedTask(0, 10_000, 0.0, 0.05, 0.1, 0.12, 0.2, 0.0501, 0.1001, 0.1203, 0),
        PlayedTask(1, 10_000, 0.0, 0.05, 0.12, 0.14, 0.141, 0.0501, 0.1301, 0.1503, 1),
        PlayedTask(3, 5_000, 0.0, 0.05, 0.14, 0.16, 0.2, failure="its link broke"),
    )
    return Played(tasks, "user-space", "planned", 1.0, 10.0, 0.002)


def test_the_plan_stands_beside_what_happened() -> None:
    table = played_table(played())

    assert column(table, "in time") == [True, False, False]
    assert column(table, "over plan") == pytest.approx([0.3, 10.3, None])
    assert column(table, "real end") == pytest.approx([120.3, 150.3, None])
    assert column(table, "core") == [1, 2, None]
    assert column(table, "failure") == ["", "", "its link broke"]
    assert table.note.startswith("1 in time, 1 late, 1 failed; over the plan by 5.30 ms (p50)")


def test_nothing_played_makes_an_empty_table() -> None:
    nothing = replace(played(), tasks=())

    assert played_table(nothing).rows == ()
    assert "over the plan" not in played_table(nothing).note


def test_turns_as_played_leave_out_what_never_ran() -> None:
    chart = played_gantt(played())

    assert values(chart, "core") == ["core 1", "core 2"]
    assert values(chart, "until") == pytest.approx([120.3, 150.3])


def served(policy: str = "joint") -> SimulationResult:
    tasks = (
        SimulatedTask(0, 0.0, 1.0, 0.0, True, 1, 0.2, 0.1, 0.2, 0.4, False, 0.01, 0.1),
        SimulatedTask(1, 0.5, 1.5, 0.5, True, 1, 0.7, 0.6, 0.7, 1.6, True, 0.03, 0.1),
        SimulatedTask(2, 1.5, 3.0, 1.5, False, 0, NAN, NAN, NAN, 3.0, False, 0.2, 0.2),
    )
    busy = ResourceUsage(np.array([0.0, 1.0]), np.array([2, 0]), np.array([1, 0]), 2.0)
    return SimulationResult(policy, tasks, busy, num_subcarriers=4, num_cores=1, num_plans=3, num_kept=0)


def test_tasks_that_come_one_after_the_other_are_summed_up() -> None:
    table = served_table([served(), served("local")])

    assert column(table, "policy") == ["joint", "local"]
    assert column(table, "accepted") == pytest.approx([200 / 3] * 2)
    assert column(table, "deadline missed, of the accepted") == [50.0, 50.0]
    assert column(table, "subcarriers in use") == pytest.approx([25.0, 25.0])
    assert column(table, "energy") == pytest.approx([80.0, 80.0])


def test_shares_over_time_have_gaps_where_nothing_arrived() -> None:
    chart = served_series([served()], num_windows=4)
    accepted = [row["share"] for row in chart.rows if row["quantity"] == "accepted"]

    assert accepted == [100.0, 100.0, None, 0.0]
    assert len({row["quantity"] for row in chart.rows}) == 4


def test_everything_can_be_written_in_every_format(tmp_path: Path) -> None:
    instance, given = answer(bound_j=0.04)
    charts = (
        radio_gantt(instance, given.allocation),
        cpu_gantt(instance, given.allocation),
        played_gantt(played()),
        served_series([served()]),
        *comparison_bars({"by hand": [given]}),
    )
    tables = (
        decisions_table(instance, given),
        comparison_table({"by hand": [given]}),
        played_table(played()),
        served_table([served()]),
    )
    report = Report("Edge", "edge", {}, 1, tables, charts)
    paths = write(report, tmp_path, formats=("json", "html", "svg"))

    assert len(paths) == 2 + len(charts)
    assert Report.from_json(report.to_json()) == report
    assert "core 1 0" in to_text(report, width=100)
