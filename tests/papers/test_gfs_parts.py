"""The parts of the GFS reproduction, on replays whose numbers are known."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from cluster.cluster_outcomes import outcome, two_pools, workload
from takeup.cluster.model import Grade, Kind
from takeup.cluster.policies import POLICIES
from takeup.cluster.scheduling.outcome import DurationSummary, Metrics, Outcome
from takeup.cluster.simulate.replay import IdleReason
from takeup.core.report import Check
from takeup.papers import gfs as money
from takeup.papers import numbers
from takeup.papers.gfs import ablations as variants
from takeup.papers.gfs import baselines as forms
from takeup.papers.gfs import baselines as loads
from takeup.papers.gfs import daily_windows as one_day
from takeup.papers.gfs import fifo
from takeup.papers.gfs.ablations import AblationMetrics
from takeup.papers.gfs.baselines import SpotLoad
from takeup.papers.gfs.fifo import DailyGap, DailyGaps

EXPECTED: dict[str, Any] = numbers("gfs")
BASELINES = EXPECTED["setting"]["baselines"]


def spread(mean: float) -> DurationSummary:
    return DurationSummary(mean, mean, mean, mean)


def metrics(eviction: float = 0.1, wait_s: float = 100.0, lost_gpu_s: float = 10.0, p99_s: float = 1000.0) -> Metrics:
    return Metrics(
        high_jct_s=spread(p99_s), high_jqt_s=spread(wait_s), spot_jct_s=spread(2 * wait_s), spot_jqt_s=spread(wait_s),
        allocation_rate=0.8, useful_rate=0.7, eviction_rate=eviction, evictions_per_start=eviction,
        evictions_per_job=eviction, promises_kept=0.95, promised_share=0.5,
        lost_gpu_s=lost_gpu_s, num_evictions=1, num_jobs=10, num_too_large=0,
    )  # fmt: skip


class KnownLoad:
    """A load whose metrics are given."""

    def __init__(self, name: str, **known: Metrics) -> None:
        self.name, self.known = name, known

    def metrics(self, policy: str) -> Metrics:
        return self.known.get(policy, metrics())


# Loads ----------------------------------------------------------------------------------------------------------------


def test_a_reduction_is_against_the_mean_and_nothing_where_the_mean_is_nothing() -> None:
    half = KnownLoad("x", gfs=metrics(eviction=0.05))
    mixed = KnownLoad("x", gfs=metrics(eviction=0.05), yarn_cs=metrics(eviction=0.5))
    quiet = KnownLoad("x", **dict.fromkeys([*BASELINES, "gfs"], metrics(eviction=0.0)))
    of = loads.QUANTITIES["spot eviction rate"]

    assert loads._reduction_percent(EXPECTED, half, of) == pytest.approx(50)  # type: ignore[arg-type]
    assert loads._reduction_percent(EXPECTED, mixed, of) == pytest.approx(75)  # type: ignore[arg-type]
    assert loads._reduction_percent(EXPECTED, quiet, of) == 0  # type: ignore[arg-type]


def shifted(given: Outcome, day: int, gpu_s: float) -> Outcome:
    """The same with more GPU time in the first hour of a day."""
    changed = given.allocated_gpu_s.copy()
    changed[0, 24 * day, Grade.HIGH] += gpu_s
    return replace(given, allocated_gpu_s=changed)


def draw(ours: Outcome, seed: int = 1) -> SpotLoad:
    return SpotLoad("low", seed, two_pools(), {"gfs": ours, "fifo": outcome("fifo")})


def by_name(checks: Any) -> dict[str, Check]:
    return {check.name: check for check in checks}


WHAT = "delivered GPU time over FIFO's, worst hour of any seed"
BROKEN = "low load, promises broken, 95 % bound, worst seed"
POOL_DAY_S = 16 * 86_400.0
SHORT = EXPECTED | {"setting": EXPECTED["setting"] | {"num_history_days": 0, "num_days": 3}}


def seen(load: SpotLoad, most_pp: float = 0.0, num_fitting: int = 0) -> DailyGaps:
    """The days of a draw, on each of which so much could have been had over FIFO."""
    lead_h = [0.0, *fifo._lead_h(load)[23::24].tolist()]
    days = [
        DailyGap(number + 1, gap_pp, lead_h[number], lead_h[number + 1], most_pp, dict.fromkeys(IdleReason, 1.0))
        for number, gap_pp in enumerate(fifo._daily_pp(load).tolist())
    ]
    return DailyGaps(load, 100, num_fitting, tuple(days))


def judged(draws: list[SpotLoad], **more: float) -> dict[str, Check]:
    backs = [seen(load, **more) for load in draws]  # type: ignore[arg-type]
    return by_name(fifo.against_fifo(SHORT, draws, backs).checks)


def test_a_lower_day_after_a_higher_one_is_shown_and_is_no_loss() -> None:
    ahead = draw(shifted(shifted(outcome("fifo"), 1, 0.05 * POOL_DAY_S), 2, -0.05 * POOL_DAY_S))
    findings = fifo.against_fifo(SHORT, [ahead], [seen(ahead)])
    summary, days, _ = findings.tables

    assert by_name(findings.checks)[f"low load, {WHAT}"].ours == pytest.approx(100)
    assert summary.rows[0][6:8] == (1, 3)
    assert summary.rows[0][8] == pytest.approx(-5.0)
    ((name, seed, day, *numbers_of_day),) = days.rows
    assert (name, seed, day) == ("low", 1, 3)
    assert numbers_of_day == pytest.approx([-5.0, 1.2, 0.0, 0.0, 1.0, 1.0, 1.0, 1.0], abs=1e-9)
    check = by_name(findings.checks)["low load, days with less allocation than FIFO, all seeds"]
    assert "after 1 of these gfs had still delivered more" in check.why
    assert summary.rows[0][9] == 0


def test_a_lower_day_before_a_higher_one_is_a_loss() -> None:
    same = draw(outcome("fifo"))
    behind = draw(shifted(shifted(outcome("fifo"), 1, -0.05 * POOL_DAY_S), 2, 0.06 * POOL_DAY_S), seed=2)
    delivered = outcome("fifo").delivered_gpu_h()
    least = 100 * min((delivered[24:48] - 0.05 * 16 * 24) / delivered[24:48])
    checks = judged([same, behind])

    assert checks[f"low load, {WHAT}"].ours == pytest.approx(least)
    assert not checks[f"low load, {WHAT}"].holds
    assert "after 1 it had delivered less" in checks["low load, days with less allocation than FIFO, all seeds"].why
    assert checks["low load, whole windows with less allocation than FIFO"].holds


@pytest.mark.parametrize(
    ("most_pp", "says"), [(-0.1, "; 1 could be won by no scheduler"), (0.0, "; 0 could be won by no scheduler")]
)
def test_a_lower_day_is_lost_for_everybody_where_the_bound_is_below_fifo(most_pp: float, says: str) -> None:
    lower = draw(shifted(outcome("fifo"), 1, -0.05 * POOL_DAY_S))
    check = judged([lower], most_pp=most_pp)["low load, days with less allocation than FIFO, all seeds"]

    assert (check.ours, check.holds) == (1, False)
    assert says in check.why


def test_moments_at_which_somebody_waits_who_would_fit_are_judged() -> None:
    same = draw(outcome("fifo"))
    check = judged([same, same], num_fitting=3)["low load, moments at which a waiting job would fit, all seeds"]

    assert (check.ours, check.holds, check.counts) == (6, False, True)
    assert check.why == "of 200 moments, five minutes apart"


def test_a_window_with_less_allocation_is_counted_with_its_seed() -> None:
    same, below = draw(outcome("fifo")), draw(shifted(outcome("fifo"), 2, -0.01 * POOL_DAY_S), seed=7)
    check = judged([same, below])["low load, whole windows with less allocation than FIFO"]

    assert (check.ours, check.holds) == (1, False)
    assert check.why == "of 2 windows; seed 7"


def test_the_same_replay_is_never_behind() -> None:
    same = draw(outcome("fifo"))
    findings = fifo.against_fifo(SHORT, [same], [seen(same)])

    assert all(check.holds for check in findings.checks)
    assert [check.ours for check in findings.checks] == pytest.approx([100, 0, 0, 0, 0])
    assert findings.tables[1].rows == ()
    assert [row[:2] for row in findings.tables[0].rows] == [("low", 1)]


def test_who_evicts_at_once_is_shown_beside_who_does_not() -> None:
    found = fifo._immediate_service_table(SHORT, draw(outcome()))
    rows = {
        str(row[0]): dict(zip((each.name for each in found.columns[1:]), row[1:], strict=True)) for row in found.rows
    }

    assert list(rows)[:2] == ["fifo", "gfs"]
    evictions = {name: row["evictions"] for name, row in rows.items()}
    assert evictions["gfs"] == evictions["kube"] == evictions["slurm"] == 1
    assert evictions["fifo"] == evictions["high_first"] == 0
    assert float(str(rows["fifo"]["high JQT"])) > float(str(rows["gfs"]["high JQT"])) == 0
    assert rows["fifo"]["days below FIFO"] == 0


def test_who_moves_jobs_is_shown_where_it_was_replayed() -> None:
    load = draw(shifted(outcome(), 1, -0.05 * POOL_DAY_S))
    load = replace(load, outcomes={**load.outcomes, "chronus_published": shifted(outcome("fifo"), 2, -1.0)})
    rows = {str(row[0]): row for row in fifo._immediate_service_table(SHORT, load).rows}

    assert rows["chronus_published"][2] == 1


def test_broken_promises_are_those_of_guaranteed_jobs() -> None:
    kept, broken = outcome().num_promises_kept * 0, outcome().num_promises_broken * 0
    for day in range(3):
        kept[0, 24 * day, Grade.GUARANTEED], broken[0, 24 * day, Grade.GUARANTEED] = 6, 2
    broken[0, 3, Grade.OPPORTUNISTIC] = 50
    ours = draw(replace(outcome(), num_promises_kept=kept, num_promises_broken=broken))
    check = judged([ours])[BROKEN]

    assert check.ours == pytest.approx(25)
    assert not check.holds


def test_the_benefit_is_priced_by_what_the_paper_prints() -> None:
    load = SpotLoad("medium", 1, two_pools(), {name: outcome(name) for name in ("gfs", "fifo", "yarn_cs")})
    findings = money.monetary_benefit(EXPECTED, load)
    price = findings.tables[0].rows[0][2]

    assert price == pytest.approx(459_715 / (3456 * 0.1403 * 720 + 176 * 0.2279 * 720))
    assert [table.title for table in findings.tables[1:]] == [
        "Benefit of gfs over yarn_cs, medium load",
        "Benefit of gfs over fifo, medium load",
    ]
    assert findings.tables[1].rows[0][1] == price


# Both forms -----------------------------------------------------------------------------------------------------------


def test_guaranteed_spot_jobs_are_compared_with_all_spot_jobs_of_a_baseline() -> None:
    ours, theirs = forms._compared_quantities("gfs")["promises broken, against spot eviction rate"]

    assert ours(metrics(eviction=0.5)) == pytest.approx(0.05)
    assert theirs(metrics(eviction=0.5)) == 0.5
    assert "guaranteed spot eviction rate" not in forms._compared_quantities("gfs_promised")


def test_evictions_stand_beside_the_spot_work_that_was_done() -> None:
    """In three days a spot job of eight GPUs runs for a day, is evicted half an hour later, and runs to its end."""
    load = SpotLoad("low", 1, two_pools(), {name: outcome(name) for name in ("fifo", "gfs")})
    rows = {str(row[1]): row[2:] for row in forms.spot_work_table([load]).rows}

    assert list(rows) == ["fifo", "gfs", "gfs, with a promise"]
    assert [float(str(value)) for value in rows["fifo"]] == pytest.approx([8 * 30 + 2 * 5, 0, 0, 0])
    useful, num_evictions, rate, lost = (float(str(value)) for value in rows["gfs"])
    assert [num_evictions, rate] == pytest.approx([1, 1000 / useful])
    assert lost * useful / 1000 == pytest.approx(outcome().metrics().lost_gpu_s / 3600)


def test_high_priority_jobs_alone_wait_for_nobody_on_an_empty_pool() -> None:
    load = SpotLoad("low", 1, two_pools(), {})
    short = {"setting": {"num_history_days": 0, "num_days": 3}}

    assert forms._high_priority_only_jqt_s(short, load) == 0


def test_the_published_form_of_every_baseline_is_a_policy() -> None:
    assert set(forms.published_baselines(EXPECTED)) < set(POLICIES)


# Ablations ------------------------------------------------------------------------------------------------------------


def figures(**changed: float) -> AblationMetrics:
    plain = dict.fromkeys(AblationMetrics.__slots__, 10.0)
    return AblationMetrics(**(plain | changed))


def parts(policy: str, **changed: list[AblationMetrics]) -> dict[str, list[AblationMetrics]]:
    full = [figures(), figures()]
    return dict.fromkeys(("full", *variants.PURPOSES[policy]), full) | {
        name.replace("_", " "): value for name, value in changed.items()
    }


def test_every_part_is_judged_by_what_it_is_for() -> None:
    found = parts("gfs_published", fixed_coefficient=[figures(spot_jqt_s=12.0), figures(spot_jqt_s=16.0)])
    found["simple placement"] = [figures(lost_gpu_h=9.0, spot_jqt_s=99.0), figures()]
    checks = {check.name: check for check in variants._part_checks("as printed", "gfs_published", found)}

    assert len(checks) == 4
    assert checks["as printed, spot JQT more with fixed coefficient"].ours == pytest.approx(4)
    assert "standard error 2" in checks["as printed, spot JQT more with fixed coefficient"].why
    assert checks["as printed, lost work more with simple placement"].ours == pytest.approx(-0.5)
    assert not checks["as printed, lost work more with simple placement"].holds


def test_pairs_are_draws_with_and_without_a_part() -> None:
    apart = variants._paired_difference(
        [figures(lost_gpu_h=11.0), figures(lost_gpu_h=13.0)], [figures(), figures()], "lost_gpu_h"
    )

    assert apart == pytest.approx((2.0, 1.0))
    assert variants._paired_difference([figures(lost_gpu_h=11.0)], [figures()], "lost_gpu_h") == (1.0, 0.0)


def test_the_forecast_must_be_worth_more_than_the_feedback() -> None:
    found = parts("gfs_published", fixed_coefficient=[figures(spot_jqt_s=300.0)])

    assert not variants._order_check(found).holds
    assert variants._order_check(parts("gfs_published")).holds


def test_figures_are_those_of_the_window() -> None:
    found = variants._ablation_metrics(outcome())

    assert found.lost_gpu_h == pytest.approx(outcome().metrics().lost_gpu_s / 3600)
    assert 0 <= found.unpromised_percent <= 100
    assert found.allocation_percent == pytest.approx(100 * outcome().metrics().allocation_rate)


def test_a_table_of_variants_has_a_row_for_each_and_errors_beside_differences() -> None:
    mediums = [SpotLoad("medium", seed, two_pools(), {}) for seed in (1, 2)]
    table = variants._table("gfs", parts("gfs", full=[figures(), figures(lost_gpu_h=12.0)]), mediums)

    assert [row[0] for row in table.rows] == ["full", *variants.PURPOSES["gfs"]]
    assert len(table.columns) == 1 + 3 * len(AblationMetrics.__slots__)
    assert "seeds 1, 2" in table.note
    assert all(np.isfinite(float(str(value))) for row in table.rows for value in row[1:])


def test_quoted_numbers_are_compared_and_never_judged() -> None:
    found = parts("gfs_published", full=[figures(spot_jqt_s=575.4, eviction_percent=1.21)])
    checks = variants._quoted_checks(EXPECTED, found)

    assert [check.expected for check in checks] == [575.4, 1.21, 10502.4, 8.08, 2174.3]
    assert [check.holds for check in checks] == [True, True, False, False, False]
    assert not any(check.counts for check in checks)


# One-day windows ------------------------------------------------------------------------------------------------------


def days_of(ours: list[float]) -> one_day.OneDayWindows:
    """Windows in which FIFO allocates eight tenths, the printed scheduler half a point less, and ours what is given."""
    rates = {"fifo": [0.8] * len(ours), "gfs_published": [0.795] * len(ours), "gfs": ours}
    known = {
        name: [replace(metrics(wait_s=10.0), allocation_rate=rate) for rate in given] for name, given in rates.items()
    }
    return one_day.OneDayWindows("low", known)


@pytest.mark.parametrize(("ours", "num_below"), [([0.8, 0.81, 0.9], 0), ([0.8, 0.7999, 0.9], 1), ([0.7, 0.7], 2)])
def test_one_day_windows_are_judged_by_their_mean_and_by_those_below_fifo(ours: list[float], num_below: int) -> None:
    gain, over, below = one_day._checks(EXPECTED, days_of(ours))

    assert gain.ours == pytest.approx(100 * (np.mean(ours) - 0.8))
    assert gain.counts
    assert gain.holds == bool(np.mean(ours) >= 0.8)
    assert over.ours == pytest.approx(100 * (np.mean(ours) - 0.795))
    assert (below.ours, below.holds) == (num_below, num_below == 0)
    assert f"of {len(ours)}, the lowest by" in below.why
    assert f"the printed scheduler is below in {len(ours)}" in below.why


def test_before_a_one_day_window_there_are_high_priority_jobs_alone() -> None:
    jobs = workload([(kind, 0, 1.0, 1, float(hour), 1.0) for hour in (1, 25, 49) for kind in (0, 1)], {"a": 1})

    cut = one_day._day_workload(jobs, 86_400.0)

    assert cut.job_kind.tolist() == [Kind.HIGH, Kind.HIGH, Kind.SPOT]
    assert (cut.job_submit_s / 3600).tolist() == [1, 25, 25]
