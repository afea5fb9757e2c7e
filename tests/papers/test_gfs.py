"""The reproduction of GFS, on a few days: every recovered number is beside ours, and checks are what tables say.

Whether checks hold is what the reproduction itself is for; here a shorter trace shows that it measures what it says.
"""

from __future__ import annotations

from typing import Any, get_args

import numpy as np
import pytest

from takeup.core.report import Check, Report, Source, Table
from takeup.papers import numbers
from takeup.papers.gfs import reproduce
from takeup.papers.gfs.daily_windows import SCHEDULERS
from takeup.papers.gfs.fifo import COMPARED

EXPECTED = numbers("gfs")
BASELINES = EXPECTED["setting"]["baselines"]
PUBLISHED = [f"{name}_published" for name in BASELINES]
QUOTED = {"quoted", "production", "ablations"}
pytestmark = pytest.mark.xdist_group("gfs on a few days")  # one process makes the report, once


@pytest.fixture(scope="module")
def report() -> Report:
    short: dict[str, Any] = {name: dict(group) for name, group in EXPECTED.items()}
    short["setting"] |= {"num_days": 4, "num_history_days": 1, "seeds": [1, 2], "part_seeds": [3]}
    short["forecast"] |= {"num_days": 6, "num_history_days": 3}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("takeup.papers.gfs.numbers", lambda paper: short)
        return reproduce(quiet=True)


def table(report: Report, title: str) -> Table:
    return next(each for each in report.tables if each.title == title)


def column(found: Table, name: str) -> dict[str, float]:
    place = [each.name for each in found.columns].index(name)
    return {str(row[0]): float(str(row[place])) for row in found.rows}


def check(report: Report, name: str) -> Check:
    return next(each for each in report.checks if each.name == name)


def test_every_group_of_numbers_names_a_source_we_know() -> None:
    groups = [group for name, group in EXPECTED.items() if name not in ("setting", "notes")]

    assert all(group["source"] in get_args(Source) for group in groups)


def test_every_recovered_number_stands_beside_one_of_ours(report: Report) -> None:
    expected = {check.expected for check in report.checks}
    quoted = EXPECTED["quoted"] | EXPECTED["ablations"]

    assert {value for value in quoted.values() if isinstance(value, float)} <= expected
    assert {
        EXPECTED["abstract"]["spot_eviction_lower_percent"],
        EXPECTED["abstract"]["spot_jqt_lower_percent"],
    } <= expected
    assert {EXPECTED["production"][f"{model}_allocation_percent"] for model in ("a100", "a800")} <= expected


def test_what_is_only_quoted_decides_nothing_and_says_why(report: Report) -> None:
    quoted = [each for each in report.checks if each.source == "unverified"]

    assert len(quoted) == 17
    assert all(not each.counts and each.why for each in quoted)
    assert {group for group, values in EXPECTED.items() if values.get("source") == "unverified"} == QUOTED


def test_every_bar_counts(report: Report) -> None:
    bars = [each for each in report.checks if each.counts]

    assert len(bars) == 3 + 3 + 4 * 3 + 4 + 2 * 3 + 4 + 1 + 4 + 3 + 1
    assert report.holds == all(each.holds for each in bars)


def test_reductions_are_against_the_mean_of_the_baselines(report: Report) -> None:
    rates = column(table(report, "Medium load: schedulers"), "evictions per period")
    by_hand = 100 * (1 - rates["gfs"] / float(np.mean([rates[name] for name in BASELINES])))
    reductions = table(report, "GFS lower than the mean of the baselines")

    assert column(reductions, "medium load")["spot eviction rate"] == pytest.approx(by_hand)
    assert check(report, "spot eviction rate, lower than the baselines' mean").ours == pytest.approx(
        column(reductions, "mean")["spot eviction rate"]
    )


def test_all_schedulers_are_replayed_at_all_loads(report: Report) -> None:
    for load in EXPECTED["setting"]["loads"]:
        found = table(report, f"{load.capitalize()} load: schedulers")

        assert [row[0] for row in found.rows] == [*BASELINES, *PUBLISHED, *COMPARED, "slurm", "gfs_promised"]


def test_more_load_is_more_spot_jobs(report: Report) -> None:
    jobs = [
        next(
            float(str(row[2]))
            for row in table(report, f"{load} load: waiting and completion").rows
            if row[:2] == ("gfs", "spot")
        )
        for load in ("Low", "Medium", "High")
    ]

    assert jobs == sorted(jobs)
    assert jobs[2] > 3 * jobs[0]


def test_against_fifo_every_load_seed_and_policy_has_a_row(report: Report) -> None:
    found = table(report, "Against FIFO")
    loads = ("low", "medium", "high")

    assert [row[:3] for row in found.rows] == [
        (load, seed, name) for seed in (1, 2) for load in loads for name in COMPARED
    ]
    assert {row[4] for row in found.rows if row[2] == "fifo"} == {0.0}


def test_useful_time_over_fifo_is_judged_by_the_rows_of_the_table(report: Report) -> None:
    found = table(report, "Against FIFO")
    for load in ("low", "medium", "high"):
        gains = [float(str(row[4])) for row in found.rows if row[0] == load and row[2] == "gfs_notice"]

        mean = check(report, f"{load} load, jobs that save, useful GPU time over FIFO's, mean")
        assert mean.ours == pytest.approx(np.mean(gains))
        assert mean.counts
        assert check(report, f"{load} load, jobs that save, the same, worst draw").ours == pytest.approx(min(gains))


def test_prices_of_waiting_are_on_one_load_beside_stock_systems(report: Report) -> None:
    found = table(report, "Prices of waiting, high load")
    rows = {row[0]: row for row in found.rows}

    assert list(rows) == [*(f"gfs at {price:g}" for price in EXPECTED["frontier"]["prices"]), "fifo", "kube", "slurm"]
    assert rows["gfs at 0"][1] == pytest.approx(rows["fifo"][1])
    assert rows["gfs at 0"][5] == 0


def test_one_day_windows_of_all_seeds_are_counted_and_judged_by_their_mean_too(report: Report) -> None:
    found = table(report, "One-day windows from one state")
    loads = ("low", "medium", "high")

    assert [row[:3] for row in found.rows] == [(load, arm, 2 * 3) for load in loads for arm in SCHEDULERS]
    for load in loads:
        rows = {row[1]: row for row in found.rows if row[0] == load}
        gain = check(report, f"{load} load, one-day windows, allocation over that of FIFO")

        assert gain.ours == pytest.approx(rows["gfs"][5])
        assert gain.counts
        assert rows["fifo"][3:9] == (0, 0, 0.0, 0.0, 0.0, 0.0)
        assert float(str(rows["gfs"][6])) <= float(str(rows["gfs"][5])) <= float(str(rows["gfs"][7]))


def test_ablations_are_differences_of_the_tables_and_ours_have_more_draws(report: Report) -> None:
    for which, policy, seeds in (("as printed", "gfs_published", "1, 2"), ("as built", "gfs", "1, 2, 3")):
        found = table(report, f"Without parts: {policy}, medium load")
        values = column(found, "lost work")

        by_hand = values["simple preemption"] - values["full"]
        assert check(report, f"{which}, lost work more with simple preemption").ours == pytest.approx(by_hand)
        assert column(found, "lost work, more")["full"] == 0
        assert f"seeds {seeds};" in found.note


def test_both_forms_of_the_baselines_stand_side_by_side(report: Report) -> None:
    found = table(report, "Both forms of the baselines")
    reductions = column(table(report, "GFS lower than the mean of the baselines"), "mean")
    evaluated = {row[2]: row[-1] for row in found.rows if row[:2] == ("gfs", "as evaluated")}

    assert {row[1] for row in found.rows} == {"as evaluated", "as published"}
    assert {row[0] for row in found.rows} == {"gfs", "gfs_promised", "high-priority jobs alone"}
    assert {name: evaluated[name] for name in reductions} == pytest.approx(reductions)
    assert "promises broken, against spot eviction rate" in evaluated


def test_the_printed_benefit_is_about_a_dollar_an_hour(report: Report) -> None:
    found = table(report, "The printed benefit")

    assert list(column(found, "price").values()) == pytest.approx([1.216, 1.216], abs=1e-3)
    assert sum(column(found, "gained a month").values()) == pytest.approx(377_990, abs=10)


def test_the_report_can_be_written_and_read(report: Report) -> None:
    assert Report.from_json(report.to_json()).checks == report.checks
    assert report.series[0].title == "Spot evictions"
