"""From a scenario to a report: workloads cut to size, replays, offers, forecasts and money, and the same again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.cluster_outcomes import HOUR_S, two_pools, workload
from takeup.cluster.experiment import ClusterScenario, run, run_again
from takeup.cluster.experiment.replays import backtest, quota_source
from takeup.cluster.experiment.scenario import hourly_demand, load_workload, price_table, select_jobs, window_of
from takeup.cluster.model import Kind
from takeup.core.report import Report
from takeup.core.scenario import validate
from takeup.errors import BadInput, BadScenario, TakeupError, UnknownName

H800 = {"pools": ["H800"]}


def scenario(**values: Any) -> ClusterScenario:
    return validate(ClusterScenario, {"verb": "compare"} | values, "test")


def report_of(**values: Any) -> Report:
    return run(scenario(**values), quiet=True)


def column(report: Report, name: str, table: int = 0) -> list[Any]:
    found = report.tables[table]
    return [row[[each.name for each in found.columns].index(name)] for row in found.rows]


# Workloads ------------------------------------------------------------------------------------------------------------


def test_a_part_of_a_workload_has_its_pools_numbered_anew() -> None:
    part = select_jobs(two_pools(), pools=["b"])

    assert part.pools == ("b",)
    assert part.num_nodes == 1
    assert part.job_pool.tolist() == [0, 0, 0]
    assert part.job_gpus.tolist() == [4.0, 2.0, 1.0]


def test_a_part_of_a_workload_may_be_some_of_its_jobs() -> None:
    whole = two_pools()
    part = select_jobs(whole, whole.job_kind == Kind.SPOT)

    assert (part.pools, part.num_jobs, part.num_nodes) == (whole.pools, 2, 2)


def test_an_unknown_pool_is_answered_with_the_nearest() -> None:
    with pytest.raises(UnknownName, match="did you mean 'H800'"):
        load_workload(scenario(pools=["H80"]))


def test_the_window_begins_with_the_first_spot_job_and_ends_with_the_last() -> None:
    jobs = [(0, 0, 1.0, 1, 0.0, 100.0), (1, 0, 1.0, 1, 50.0, 1.0), (0, 0, 1.0, 1, 99.5, 1.0)]
    given_workload = workload(jobs, {"a": 1})

    assert window_of(scenario(), given_workload) == (48 * HOUR_S, 100 * HOUR_S)
    assert window_of(scenario(from_day=1, to_day=3), given_workload) == (24 * HOUR_S, 72 * HOUR_S)
    with pytest.raises(BadInput, match="begins on day 9"):
        window_of(scenario(from_day=9), given_workload)


def test_days_and_scale_choose_a_part_of_what_is_drawn_and_the_seed_another_draw() -> None:
    whole, short, other = (load_workload(scenario(**values))[0] for values in ({}, {"num_days": 2}, {"seed": 2}))
    large, _ = load_workload(scenario(scale=2.0))

    assert short.num_jobs < whole.num_jobs < large.num_jobs
    assert not np.array_equal(whole.job_submit_s, other.job_submit_s)
    assert load_workload(scenario(to_day=2.0))[0].job_submit_s.max() < 2 * 86_400


def plain_hourly_demand(jobs: list[tuple[int, float, float, float]], num_hours: int) -> list[float]:
    """The highest of all moments of each hour, looked at one by one: those at which something changes."""
    highest = []
    for hour in range(num_hours):
        moments = [float(hour), *(t for _, _, s, d in jobs for t in (s, s + d) if hour <= t < hour + 1)]
        level = [sum(g for _, g, s, d in jobs if s <= moment < s + d) for moment in moments]
        highest.append(max(level))
    return highest


job_of_demand = st.tuples(
    st.just(0),
    st.integers(1, 8).map(float),
    st.integers(0, 40).map(lambda x: x / 8),
    st.integers(1, 60).map(lambda x: x / 8),
)


@given(st.lists(job_of_demand, min_size=1, max_size=8))
def test_hourly_demand_is_the_highest_moment_of_each_hour(jobs: list[tuple[int, float, float, float]]) -> None:
    rows = [(0, 0, gpus, 1, submit, duration) for _, gpus, submit, duration in jobs]
    demand = hourly_demand(workload(rows, {"a": 1}))

    assert demand[:, 0].tolist() == plain_hourly_demand(jobs, len(demand))


def test_spot_jobs_are_no_demand() -> None:
    assert hourly_demand(workload([(1, 0, 8.0, 1, 0.0, 2.0)], {"a": 1})).tolist() == [[0.0]]


# Replays --------------------------------------------------------------------------------------------------------------


def test_policies_stand_side_by_side_on_the_same_jobs() -> None:
    report = report_of(policies=["fifo", "gfs"])

    assert column(report, "policy") == ["fifo", "gfs"]
    assert column(report, "evictions per period")[0] == 0 < column(report, "evictions per period")[1]
    assert column(report, "jobs", 1)[:2] == column(report, "jobs", 1)[2:]
    assert [table.title for table in report.tables] == ["Schedulers", "Waiting and completion", "Pools"]
    assert report.series[0].title == "Spot evictions"
    assert "24 nodes with 192 GPUs" in report.notes[0]


def test_a_simulation_draws_hours_and_knows_its_quota() -> None:
    report = report_of(verb="simulate", policies=["gfs"], **H800)

    assert [series.title for series in report.series] == ["GPUs in use", "Evictions over time", "Demand and quota"]
    assert len(report.tables) == 2
    lines = {row["what"] for row in report.series[2].rows}
    assert lines == {"capacity", "high-priority demand", "quota", "demand stays below"}


def test_simulate_and_compare_agree() -> None:
    one, side = (report_of(verb=verb, policies=["yarn_cs"], **H800) for verb in ("simulate", "compare"))

    assert one.tables == side.tables


@pytest.mark.parametrize(
    "values",
    [
        {"verb": "simulate", "policies": ["gfs"], **H800},
        {"verb": "compare", "policies": ["fifo", "lyra"], "to_day": 3},
        {"verb": "benefit", "prices": ["1.5"], "to_day": 3},
        {"verb": "offer", "at_day": 2, **H800},
        {"verb": "forecast", "models": ["persistence"]},
    ],
    ids=lambda values: str(values["verb"]),
)
def test_a_report_can_be_run_again(values: dict[str, Any]) -> None:
    report = run(scenario(**values), quiet=True)
    again = run_again(dict(Report.from_json(report.to_json()).scenario), "report", quiet=True)

    assert again.tables == report.tables


def test_progress_of_a_long_replay_reaches_its_end(capsys: pytest.CaptureFixture[str]) -> None:
    run(scenario(verb="simulate", policies=["fifo", "gfs"], to_day=2), quiet=False)

    assert capsys.readouterr().out == ""


def test_a_careful_probability_promises_less() -> None:
    def quota(probability: float) -> float:
        return float(column(report_of(policies=["gfs"], probability=probability, to_day=3), "mean quota", 2)[0])

    assert quota(0.99) < quota(0.8)


def test_without_feedback_the_coefficient_stays() -> None:
    assert quota_source(scenario()).has_feedback
    assert not quota_source(scenario(feedback=False)).has_feedback


# Money ----------------------------------------------------------------------------------------------------------------


def test_a_benefit_has_an_interval_around_it() -> None:
    report = report_of(verb="benefit", prices=["A100-SXM4-80GB=1.2", "H800=2"])
    month, low, high = (column(report, name) for name in ("a month", "from", "to"))

    assert column(report, "pool") == ["A100-SXM4-80GB", "H800", "all"]
    assert all(lo <= mid <= hi for lo, mid, hi in zip(low, month, high, strict=True))
    assert column(report, "spot price")[:2] == [1.2, 2.0]


def test_prices_are_linear() -> None:
    one, two = (report_of(verb="benefit", prices=[price], to_day=2, **H800) for price in ("1", "2"))

    assert column(two, "a month") == pytest.approx([2 * value for value in column(one, "a month")])


def test_price_tables() -> None:
    assert price_table(("1.5",), ("a", "b")) == {"a": 1.5, "b": 1.5}
    assert price_table(("1.5", "b=2"), ("a", "b")) == {"a": 1.5, "b": 2.0}
    for wrong in ("x", "a=", "a=-1", "a=inf", "a=nan"):
        with pytest.raises(BadScenario, match="is no price"):
            price_table((wrong,), ("a",))
    with pytest.raises(BadScenario, match="not there; the pools are a"):
        price_table(("c=1",), ("a",))


# Offers ---------------------------------------------------------------------------------------------------------------


def test_offers_get_worse_with_size_and_never_exceed_what_is_idle() -> None:
    def longest(num_gpus: int) -> float:
        hours = column(report_of(verb="offer", pools=["A100-SXM4-80GB"], at_day=3, num_gpus=num_gpus), "hours")
        return max(hours, default=-1.0)

    found = [longest(num_gpus) for num_gpus in (1, 16, 128)]

    assert found[0] >= found[1] >= 0
    assert found[2] == -1.0


def test_an_offer_for_a_gang_shows_the_whole_nodes_that_stay_free() -> None:
    report = report_of(verb="offer", at_day=3, num_gpus=8, gang_nodes=1, **H800)
    free = [float(str(row[1])) for row in report.tables[2].rows]

    assert report.tables[2].title.startswith("Whole nodes that stay free")
    assert free == sorted(free, reverse=True)
    assert len(report_of(verb="offer", at_day=3, num_gpus=8, **H800).tables) == 2


def test_an_offer_is_about_the_moment_that_was_asked_for() -> None:
    early, late = (report_of(verb="offer", at_day=day, **H800) for day in (0.5, 6.0))

    assert "knows 12 hours" in early.tables[1].note
    assert "knows 144 hours" in late.tables[1].note
    assert late.notes[0].startswith("day 6.000 of small")


def test_an_offer_can_be_asked_for_before_any_spot_job_came() -> None:
    report = report_of(verb="offer", workload="a100_2296", num_days=34, scale=0.05, at_day=1, num_gpus=1)

    assert "knows 24 hours" in report.tables[1].note


def test_an_empty_pool_offers_something_in_its_first_minute_and_less_for_more_hours() -> None:
    report = report_of(verb="offer", at_day=0, num_gpus=4, **H800)
    free = column(report, "90% free", table=1)

    assert max(column(report, "hours")) >= 1.0
    assert free == sorted(free, reverse=True)
    assert 0 < free[-1] < free[0] < 64
    assert "no hour is over yet" in report.tables[1].note


def test_an_offer_needs_one_pool_a_policy_with_a_quota_and_a_job_that_fits() -> None:
    for values, words in (
        ({}, "choose one with '--pool'"),
        ({"policies": ["fifo"], **H800}, "makes no promises"),
        ({"num_gpus": 65, **H800}, "more than H800 has: 8 nodes with 64 GPUs"),
        ({"gang_nodes": 9, **H800}, "on 9 whole nodes are more than"),
        ({"at_day": 99, **H800}, "after the trace, which ends on day 6"),
    ):
        with pytest.raises(BadInput, match=words):
            report_of(verb="offer", **values)


# Forecasts ------------------------------------------------------------------------------------------------------------


def test_no_hour_is_known_before_it_is_over() -> None:
    demand = np.random.default_rng(1).integers(0, 50, (60, 2)).astype(np.float64)
    changed = demand.copy()
    changed[50:] += 1000
    one, other = (backtest("persistence", table, ("a", "b"), 20, 4, 0.9) for table in (demand, changed))

    assert np.array_equal(one.bound[: 50 - 20], other.bound[: 50 - 20])
    assert one.highest[0].tolist() == demand[21:25].max(axis=0).tolist()
    assert len(one.bound) == 60 - 4 - 20


def test_a_table_of_hourly_demand_is_forecast(tmp_path: Path) -> None:
    path = tmp_path / "hourly.csv"
    lines = ["hour,a,b", *(f"{hour},{10 + hour % 24},{hour % 5}" for hour in range(100))]
    path.write_text("\n".join(lines) + "\n")
    report = report_of(verb="forecast", demand=str(path), models=["anchored", "persistence"], num_hours=2)

    assert column(report, "model") == ["anchored", "persistence"]
    assert column(report, "pool", 1) == ["a", "b"]
    assert column(report, "capacity", 1) == [33.0, 4.0]
    assert "capacities are not known" in report.notes[0]


@pytest.mark.parametrize(
    ("text", "values", "words"),
    [
        ("hour\n1\n", {}, "has one column"),
        ("hour,a\n0,1\n1,-2\n", {}, "line 3, column 'a': demand is -2"),
        ("hour,a\n0,1\n1,x\n", {}, "line 3"),
        ("hour,a\n0,1\n1,2\n", {}, "none is left to compare"),
        ("hour,a\n0,1\n1,2\n", {"workload": "small"}, "and not both"),
    ],
)
def test_a_table_that_cannot_be_forecast_is_refused(
    tmp_path: Path, text: str, values: dict[str, str], words: str
) -> None:
    (tmp_path / "hourly.csv").write_text(text)
    with pytest.raises(BadInput, match=words):
        report_of(verb="forecast", demand=str(tmp_path / "hourly.csv"), **values)


# What does not go together --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"policies": []}, "name at least one policy"),
        ({"policies": ["gfss"]}, "did you mean 'gfs'"),
        ({"workload": "smal"}, "did you mean 'small'"),
        ({"workload": "small", "trace": "x.csv"}, "and not both"),
        ({"verb": "offer", "policies": ["gfs", "fifo"]}, "takes one policy"),
        ({"from_day": 3, "to_day": 2}, "is empty"),
        ({"probability": 1.0}, "'probability' is 1.0"),
        ({"model": "oracle"}, "no forecast model 'oracle'"),
        ({"scale": 0}, "'scale' is 0"),
        ({"num_days": 500}, "choose 1 to 184"),
        ({"verb": "forecast", "models": ["oracle"]}, "no forecast model 'oracle'"),
        ({"verb": "benefit"}, "pool 'A100-SXM4-80GB' has no price"),
        ({"verb": "benefit", "prices": ["1"], "to_day": 0.5}, "no whole day"),
        ({"verb": "benefit", "prices": ["1"], "against": "ffo", "to_day": 1}, "did you mean 'fifo'"),
        ({"trace": "x.csv", "scale": 2.0}, "a trace is what it is"),
    ],
)
def test_what_does_not_go_together_is_refused(values: dict[str, Any], words: str) -> None:
    with pytest.raises(TakeupError, match=words):
        report_of(**values)
