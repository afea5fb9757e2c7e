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
    others = KnownLoad("x")
    mixed = KnownLoad("x", yarn_cs=metrics(eviction=0.5))
    quiet = KnownLoad("x", **dict.fromkeys(BASELINES, metrics(eviction=0.0)))
    of = loads.QUANTITIES["spot eviction rate"]

    assert loads._reduction_percent(others, BASELINES, 0.05, of) == pytest.approx(50)  # type: ignore[arg-type]
    assert loads._reduction_percent(mixed, BASELINES, 0.05, of) == pytest.approx(75)  # type: ignore[arg-type]
    assert loads._reduction_percent(quiet, BASELINES, 0.0, of) == 0  # type: ignore[arg-type]


def with_useful(given: Outcome, gpu_s: float) -> Outcome:
    """The same with more useful GPU time in the first hour."""
    changed = given.useful_gpu_s.copy()
    changed[0, 0, Grade.HIGH] += gpu_s
    return replace(given, useful_gpu_s=changed)


def draw(ours: Outcome, seed: int = 1) -> SpotLoad:
    every = dict.fromkeys(("gfs", "gfs_notice", "kube", "slurm"), ours) | {"fifo": outcome("fifo")}
    return SpotLoad("low", seed, two_pools(), every)


def by_name(checks: Any) -> dict[str, Check]:
    return {check.name: check for check in checks}


GAIN = "low load, jobs that save, useful GPU time over FIFO's, mean"
WORST = "low load, jobs that save, the same, worst draw"
BROKEN = "low load, promises broken, 95 % bound, worst seed"


def judged(draws: list[SpotLoad]) -> dict[str, Check]:
    return by_name(fifo._load_checks(EXPECTED, "low", draws))


def test_useful_time_is_judged_by_its_mean_with_an_interval_and_by_the_worst_draw() -> None:
    """One hour of the pools is 28 GPU-hours over three days; gains of 2 and -1 of them."""
    fifos, hour_s = outcome("fifo"), 3600.0
    total_gpu_s = float(fifos.capacity_gpus.sum()) * (fifos.to_s - fifos.from_s)
    more, less = (draw(with_useful(fifos, hours * hour_s)) for hours in (2.0, -1.0))
    checks = judged([more, less])

    assert checks[GAIN].ours == pytest.approx(100 * 0.5 * hour_s / total_gpu_s)
    assert checks[WORST].ours == pytest.approx(-100 * hour_s / total_gpu_s)
    assert checks[GAIN].holds
    assert "with 95 %, 2 draws" in checks[GAIN].why


def test_a_worst_draw_far_below_fifo_fails() -> None:
    fifos = outcome("fifo")
    checks = judged([draw(with_useful(fifos, -0.003 * float(fifos.capacity_gpus.sum()) * (fifos.to_s - fifos.from_s)))])

    assert checks[WORST].ours == pytest.approx(-0.3)
    assert not checks[WORST].holds


def test_broken_promises_are_those_of_guaranteed_jobs() -> None:
    kept, broken = outcome().num_promises_kept * 0, outcome().num_promises_broken * 0
    for day in range(3):
        kept[0, 24 * day, Grade.GUARANTEED], broken[0, 24 * day, Grade.GUARANTEED] = 6, 2
    broken[0, 3, Grade.OPPORTUNISTIC] = 50
    ours = draw(replace(outcome(), num_promises_kept=kept, num_promises_broken=broken))
    check = judged([ours])[BROKEN]

    assert check.ours == pytest.approx(25)
    assert not check.holds


def test_lost_work_is_compared_at_no_longer_waiting_with_the_best_stock_system() -> None:
    """Slurm loses less than kube: 80 GPU-seconds at 100 s; of the prices with at most 100 s the least loses 40."""
    known = KnownLoad(
        "high", kube=metrics(lost_gpu_s=100.0), slurm=metrics(lost_gpu_s=80.0), fifo=metrics(lost_gpu_s=0.0)
    )
    frontier = {0.0: metrics(wait_s=900.0, lost_gpu_s=0.0), 10.0: metrics(lost_gpu_s=40.0), 30.0: metrics(wait_s=50.0)}
    frontier[30.0] = replace(frontier[30.0], lost_gpu_s=60.0)
    lost, evictions, spot, at_zero = fifo.frontier_checks(EXPECTED, known, frontier)  # type: ignore[arg-type]

    assert lost.ours == pytest.approx(50.0)
    assert "under slurm" in lost.why
    assert (evictions.holds, spot.holds) == (True, True)
    assert at_zero.ours == pytest.approx(0.0)


def test_where_every_price_waits_longer_nothing_is_lower() -> None:
    known = KnownLoad("high", kube=metrics(lost_gpu_s=100.0), slurm=metrics(lost_gpu_s=80.0), fifo=metrics())
    frontier = {0.0: metrics(wait_s=900.0), 10.0: metrics(wait_s=101.0)}
    lost, _, spot, _ = fifo.frontier_checks(EXPECTED, known, frontier)  # type: ignore[arg-type]

    assert (lost.ours, lost.holds) == (0.0, False)
    assert not spot.holds


def test_a_baseline_must_be_matched_in_waits_and_lost_work_by_one_price() -> None:
    """Chronus loses nothing, and price 0 neither; kube waits as long as price 10, and loses less."""
    names = ["fifo", *BASELINES, *(f"{name}_published" for name in BASELINES), "kube", "slurm"]
    slow, fast = metrics(wait_s=900.0, lost_gpu_s=0.0), metrics(wait_s=100.0, lost_gpu_s=40.0)
    known = dict.fromkeys(names, fast) | {"chronus": slow, "kube": replace(fast, lost_gpu_s=39.0)}
    check = fifo.undercut(EXPECTED, KnownLoad("x", **known), {0.0: slow, 10.0: fast})  # type: ignore[arg-type]

    assert (check.ours, check.holds) == (1, False)
    assert check.why == "of 11: kube"


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


@pytest.mark.parametrize("ours", [[0.8, 0.81, 0.9], [0.8, 0.7999, 0.9], [0.7, 0.7]])
def test_one_day_windows_are_judged_by_their_mean(ours: list[float]) -> None:
    gain, over = one_day._checks(EXPECTED, days_of(ours))

    assert gain.ours == pytest.approx(100 * (np.mean(ours) - 0.8))
    assert gain.counts
    assert gain.holds == bool(np.mean(ours) >= 0.8)
    assert over.ours == pytest.approx(100 * (np.mean(ours) - 0.795))


def test_before_a_one_day_window_there_are_high_priority_jobs_alone() -> None:
    jobs = workload([(kind, 0, 1.0, 1, float(hour), 1.0) for hour in (1, 25, 49) for kind in (0, 1)], {"a": 1})

    cut = one_day._day_workload(jobs, 86_400.0)

    assert cut.job_kind.tolist() == [Kind.HIGH, Kind.HIGH, Kind.SPOT]
    assert (cut.job_submit_s / 3600).tolist() == [1, 25, 25]
