"""Ablations of GFS at medium load, over several draws: as printed, and as built here.

The numbers of the paper are those of the printed system, in which spot jobs run inside the quota or not at all. There a
forecast that is too conservative makes jobs wait for days. Here spot jobs beyond the quota run without a guarantee, so
that parts matter less for waiting, and more for how much can be guaranteed and for the cost of evictions. Each part is
judged by its purpose. Every draw is replayed with and without it, and differences are paired.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import sqrt

import numpy as np

from takeup.cluster.model import Grade
from takeup.cluster.policies import find_policy
from takeup.cluster.quota.allocator import SpotQuota, forecast_by
from takeup.cluster.scheduling.outcome import Outcome
from takeup.core.report import Cell, Check, Column, Table
from takeup.papers import Findings, Numbers, quoted_checks
from takeup.papers.gfs.baselines import SpotLoad, WarmStart, draw_workload

QUOTAS: dict[str, Callable[[WarmStart], SpotQuota]] = {
    "full": lambda taught: SpotQuota(make_forecast=taught),
    "last week's peak": lambda taught: SpotQuota(make_forecast=forecast_by("last_week_peak")),
    "fixed coefficient": lambda taught: SpotQuota(make_forecast=taught, has_feedback=False),
}
PARTS = {"simple placement": "simple_place", "simple preemption": "simple_preempt"}
HOUR_S = 3600.0


@dataclass(frozen=True, slots=True)
class AblationMetrics:
    """Metrics of one replay by which parts are judged; more is worse in each, except allocation."""

    spot_jqt_s: float
    eviction_percent: float
    lost_gpu_h: float
    unpromised_percent: float
    broken_percent: float
    allocation_percent: float


LABELS = {
    "spot_jqt_s": ("spot JQT", "s", 1),
    "eviction_percent": ("spot evictions", "%", 2),
    "lost_gpu_h": ("lost work", "GPU-h", 1),
    "unpromised_percent": ("spot time without a promise", "%", 2),
    "broken_percent": ("promises broken", "%", 2),
    "allocation_percent": ("allocation", "%", 2),
}
# The metric that each part should improve.
PURPOSES = {
    policy: {"last week's peak": of_quota, "fixed coefficient": of_quota} | dict.fromkeys(PARTS, "lost_gpu_h")
    for policy, of_quota in (("gfs_published", "spot_jqt_s"), ("gfs", "unpromised_percent"))
}
Draws = Mapping[str, Sequence[AblationMetrics]]


def ablation_findings(expected: Numbers, mediums: Sequence[SpotLoad], tick: Callable[[], None]) -> Findings:
    """Loss of the printed system without each part on the draws of these loads, and of ours on further draws, too."""
    setting = expected["setting"]
    further = [SpotLoad("medium", seed, draw_workload(expected, "medium", seed), {}) for seed in setting["part_seeds"]]
    loads = {"gfs_published": mediums, "gfs": [*mediums, *further]}
    found = {policy: _replay_variants(expected, policy, loads[policy], tick) for policy in PURPOSES}
    checks = [
        *_part_checks("as printed", "gfs_published", found["gfs_published"]),
        _order_check(found["gfs_published"]),
    ]
    checks += [*_part_checks("as built", "gfs", found["gfs"]), *_quoted_checks(expected, found["gfs_published"])]
    return Findings(tuple(checks), tuple(_table(policy, found[policy], loads[policy]) for policy in PURPOSES))


def _replay_variants(expected: Numbers, policy: str, mediums: Sequence[SpotLoad], tick: Callable[[], None]) -> Draws:
    found = {}
    for name in ("full", *PURPOSES[policy]):
        played = f"{policy}_{PARTS[name]}" if name in PARTS else policy
        make = QUOTAS.get(name, QUOTAS["full"])
        found[name] = [_ablation_metrics(_replay(expected, load, played, make(load.warm_start))) for load in mediums]
        tick()
    return found


def _replay(expected: Numbers, load: SpotLoad, policy: str, source: SpotQuota) -> Outcome:
    outcome = load.replay(expected, find_policy(policy, source))
    load.warm_start.learn(outcome)
    return outcome


def _ablation_metrics(outcome: Outcome) -> AblationMetrics:
    metrics = outcome.metrics()
    hours = slice(int(outcome.from_s // HOUR_S), int(outcome.to_s // HOUR_S))
    by_grade = outcome.allocated_gpu_s[:, hours].sum(axis=(0, 1))
    spot_gpu_s = float(by_grade[Grade.GUARANTEED :].sum())
    return AblationMetrics(
        spot_jqt_s=metrics.spot_jqt_s.mean,
        eviction_percent=100 * metrics.eviction_rate,
        lost_gpu_h=metrics.lost_gpu_s / HOUR_S,
        unpromised_percent=100 * float(by_grade[Grade.OPPORTUNISTIC]) / spot_gpu_s if spot_gpu_s else 0.0,
        broken_percent=100 * (1 - metrics.promises_kept),
        allocation_percent=100 * metrics.allocation_rate,
    )


def _mean(draws: Sequence[AblationMetrics], field: str) -> float:
    return float(np.mean([getattr(each, field) for each in draws]))


def _part_checks(which: str, policy: str, found: Draws) -> list[Check]:
    """Check that every part helps: without it, its metric gets worse on average over the draws."""
    checks = []
    for name, field in PURPOSES[policy].items():
        label, unit, _ = LABELS[field]
        more, error = _paired_difference(found[name], found["full"], field)
        why = f"paired over {len(found['full'])} draws, standard error {error:.3g}"
        checks.append(Check.at_least(f"{which}, {label} more with {name}", more, 0.0, unit=unit, why=why))
    return checks


def _paired_difference(
    draws: Sequence[AblationMetrics], full: Sequence[AblationMetrics], field: str
) -> tuple[float, float]:
    """Mean paired difference to the full system, and its standard error."""
    apart = [getattr(one, field) - getattr(other, field) for one, other in zip(draws, full, strict=True)]
    error = float(np.std(apart, ddof=1)) / sqrt(len(apart)) if len(apart) > 1 else 0.0
    return float(np.mean(apart)), error


def _order_check(printed: Draws) -> Check:
    """Check that the forecast is worth more than the feedback."""
    peak, fixed = (_mean(printed[name], "spot_jqt_s") for name in ("last week's peak", "fixed coefficient"))
    name = "as printed, spot JQT more with last week's peak than with a fixed coefficient"
    return Check.at_least(name, peak - fixed, 0.0, unit="s")


def _quoted_checks(expected: Numbers, printed: Draws) -> list[Check]:
    full, peak, fixed = (printed[name] for name in QUOTAS)
    ours = {
        "full_jqt_s": _mean(full, "spot_jqt_s"),
        "full_eviction_percent": _mean(full, "eviction_percent"),
        "last_week_peak_jqt_s": _mean(peak, "spot_jqt_s"),
        "last_week_peak_eviction_percent": _mean(peak, "eviction_percent"),
        "fixed_coefficient_jqt_s": _mean(fixed, "spot_jqt_s"),
    }
    return quoted_checks(expected["ablations"], ours)


def _table(policy: str, found: Draws, mediums: Sequence[SpotLoad]) -> Table:
    columns = [Column("variant")]
    for label, unit, digits in LABELS.values():
        columns += [Column(label, unit, digits), Column(f"{label}, more", unit, digits), Column("error", unit, digits)]
    rows: list[tuple[Cell, ...]] = []
    for name, draws in found.items():
        cells: list[Cell] = [name]
        for field in LABELS:
            cells += [_mean(draws, field), *_paired_difference(draws, found["full"], field)]
        rows.append(tuple(cells))
    seeds = ", ".join(str(load.seed) for load in mediums)
    note = f"means over seeds {seeds}; more: than the full system on the same draw, with the standard error of that"
    return Table(f"Without parts: {policy}, medium load", tuple(columns), tuple(rows), note)
