"""The parts of the GFS reproduction, on replays whose numbers are known."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from cluster.cluster_outcomes import outcome, two_pools
from takeup.cluster.fleet.outcome import Metrics, Outcome, Spread
from takeup.cluster.model import Grade
from takeup.core.report import Check
from takeup.papers import numbers
from takeup.papers.gfs import loads, variants
from takeup.papers.gfs.loads import Load

EXPECTED: dict[str, Any] = numbers("gfs")
BASELINES = EXPECTED["setting"]["baselines"]


def spread(mean: float) -> Spread:
    return Spread(mean, mean, mean, mean)


def metrics(eviction: float = 0.1, wait_s: float = 100.0, lost_gpu_s: float = 10.0, p99_s: float = 1000.0) -> Metrics:
    return Metrics(
        high_jct_s=spread(p99_s), high_jqt_s=spread(wait_s), spot_jct_s=spread(2 * wait_s), spot_jqt_s=spread(wait_s),
        allocation_rate=0.8, useful_rate=0.7, eviction_rate=eviction, evictions_per_start=eviction,
        evictions_per_job=eviction, guarantee_kept={Grade.GUARANTEED: 0.95, Grade.OPPORTUNISTIC: 0.9},
        lost_gpu_s=lost_gpu_s, num_evictions=1, num_jobs=10, num_too_large=0,
    )  # fmt: skip


class KnownLoad:
    """A load whose metrics are given."""

    def __init__(self, name: str, **known: Metrics) -> None:
        self.name, self.known = name, known

    def metrics(self, policy: str) -> Metrics:
        return self.known.get(policy, metrics())


def by_name(checks: Any) -> dict[str, Check]:
    return {check.name: check for check in checks}


# Loads ----------------------------------------------------------------------------------------------------------------


def test_a_reduction_is_against_the_mean_and_nothing_where_the_mean_is_nothing() -> None:
    half = KnownLoad("x", gfs=metrics(eviction=0.05))
    mixed = KnownLoad("x", gfs=metrics(eviction=0.05), yarn_cs=metrics(eviction=0.5))
    quiet = KnownLoad("x", **dict.fromkeys([*BASELINES, "gfs"], metrics(eviction=0.0)))
    of = loads.QUANTITIES["spot eviction rate"]

    assert loads._lower_percent(EXPECTED, half, of) == pytest.approx(50)  # type: ignore[arg-type]
    assert loads._lower_percent(EXPECTED, mixed, of) == pytest.approx(75)  # type: ignore[arg-type]
    assert loads._lower_percent(EXPECTED, quiet, of) == 0  # type: ignore[arg-type]


@pytest.mark.parametrize(("p99_s", "holds"), [(1000.0, True), (1009.0, True), (1011.0, False), (900.0, True)])
def test_high_priority_jobs_may_take_one_percent_longer_than_under_the_best_baseline(p99_s: float, holds: bool) -> None:
    load = KnownLoad("low", gfs=metrics(p99_s=p99_s), lyra=metrics(p99_s=5000.0))
    check = loads._p99_check(EXPECTED, load)  # type: ignore[arg-type]

    assert check.holds == holds
    assert check.ours == pytest.approx(100 * (p99_s / 1000 - 1))


def shifted(given: Outcome, day: int, gpu_s: float) -> Outcome:
    """The same with more GPU time on one day."""
    changed = given.allocated_gpu_s.copy()
    changed[0, 24 * day, Grade.HIGH] += gpu_s
    return replace(given, allocated_gpu_s=changed)


def test_a_day_below_fifo_is_found_and_measured() -> None:
    fifo, gpu_day_s = outcome("fifo"), 16 * 86_400.0
    ours = shifted(shifted(fifo, 1, -0.05 * gpu_day_s), 2, 0.01 * gpu_day_s)
    load = Load("low", two_pools(), {"gfs": ours, "fifo": fifo})
    findings = loads.against_fifo(EXPECTED, [load])
    (row,) = findings.tables[0].rows

    assert by_name(findings.checks)["low load, days with less allocation than FIFO"].ours == 1
    assert row[:3] == ("low", 1, 3)
    assert row[3] == pytest.approx(-5.0)
    assert row[4] == pytest.approx(-4 / 3)


def test_the_same_replay_is_below_on_no_day() -> None:
    load = Load("high", two_pools(), {"gfs": outcome("fifo"), "fifo": outcome("fifo")})
    checks = by_name(loads.against_fifo(EXPECTED, [load]).checks)

    assert checks["high load, days with less allocation than FIFO"].holds
    assert checks["high load, eviction of guaranteed spot jobs"].ours == 0


def test_broken_promises_are_those_of_guaranteed_jobs() -> None:
    kept, broken = outcome().num_kept * 0, outcome().num_broken * 0
    kept[0, 1, Grade.GUARANTEED], broken[0, 2, Grade.GUARANTEED] = 6, 2
    broken[0, 3, Grade.OPPORTUNISTIC] = 50
    load = Load(
        "low", two_pools(), {"gfs": replace(outcome(), num_kept=kept, num_broken=broken), "fifo": outcome("fifo")}
    )
    check = by_name(loads.against_fifo(EXPECTED, [load]).checks)["low load, eviction of guaranteed spot jobs"]

    assert check.ours == pytest.approx(25)
    assert not check.holds


def test_the_benefit_is_priced_by_what_the_paper_prints() -> None:
    load = Load("medium", two_pools(), {name: outcome(name) for name in ("gfs", "fifo", "yarn_cs")})
    findings = loads.benefit(EXPECTED, load)
    price = findings.tables[0].rows[0][2]

    assert price == pytest.approx(459_715 / (3456 * 0.1403 * 720 + 176 * 0.2279 * 720))
    assert [table.title for table in findings.tables[1:]] == [
        "Benefit of gfs over yarn_cs, medium load",
        "Benefit of gfs over fifo, medium load",
    ]
    assert findings.tables[1].rows[0][1] == price


# Ablations ------------------------------------------------------------------------------------------------------------


def parts(**changed: Metrics) -> dict[str, Metrics]:
    names = [*variants.SOURCES, *variants.PARTS]
    return dict.fromkeys(names, metrics()) | {name.replace("_", " "): value for name, value in changed.items()}


def test_waiting_is_what_forecast_and_feedback_are_for_and_lost_work_what_placement_is_for() -> None:
    found = parts(fixed_coefficient=metrics(wait_s=300), simple_placement=metrics(lost_gpu_s=5, wait_s=900))
    checks = by_name(variants._without(EXPECTED, "as built", found))

    assert len(checks) == 4
    assert checks["as built, spot JQT with fixed coefficient over full"].ours == pytest.approx(3)
    assert checks["as built, lost work with simple placement over full"].ours == pytest.approx(0.5)
    assert not checks["as built, lost work with simple placement over full"].holds
    assert checks["as built, lost work with simple preemption over full"].holds


def test_a_ratio_to_nothing_is_no_number_and_does_not_hold() -> None:
    found = parts(full=metrics(wait_s=0.0, lost_gpu_s=0.0))
    checks = variants._without(EXPECTED, "as built", found)

    assert [check.ours for check in checks] == [None] * 4
    assert not any(check.holds for check in checks)


def test_the_forecast_must_be_worth_more_than_the_feedback() -> None:
    found = parts(fixed_coefficient=metrics(wait_s=300)) | {"last week's peak": metrics(wait_s=200)}

    assert not variants._order(EXPECTED, found).holds
    assert variants._order(EXPECTED, parts()).holds


def test_a_table_of_variants_has_a_row_for_each() -> None:
    table = variants._table("gfs", parts(full=metrics(lost_gpu_s=7200.0)))

    assert [row[0] for row in table.rows] == [*variants.SOURCES, *variants.PARTS]
    assert table.rows[0][4] == pytest.approx(2.0)
    assert all(np.isfinite(float(str(value))) for row in table.rows for value in row[1:])


def test_quoted_numbers_are_compared_and_never_judged() -> None:
    checks = variants._quoted(EXPECTED, parts(full=metrics(wait_s=575.4, eviction=0.0121)))

    assert [check.expected for check in checks] == [575.4, 1.21, 10502.4, 8.08, 2174.3]
    assert [check.holds for check in checks] == [True, True, False, False, False]
    assert not any(check.counts for check in checks)
