"""GFS without its parts at medium load: as printed, and as built here.

The numbers of the paper are those of the printed system, in which spot jobs run inside the quota or not at all. There a
forecast that is too careful makes jobs wait for days. Here spot jobs beyond the quota run without a promise, so that
parts matter less for waiting, and more for who is evicted.
"""

from __future__ import annotations

from collections.abc import Callable

from takeup.cluster.fleet.outcome import Metrics
from takeup.cluster.policies import find_policy
from takeup.cluster.policies.gfs.quota import SpotQuota
from takeup.cluster.policies.gfs.quota.allocator import forecast_by
from takeup.cluster.simulate import replay
from takeup.core.report import Cell, Check, Column, Table
from takeup.papers.findings import Findings
from takeup.papers.gfs.loads import Load, Numbers, window_s

__all__ = ["ablations"]

SOURCES: dict[str, Callable[[], SpotQuota]] = {
    "full": SpotQuota,
    "last week's peak": lambda: SpotQuota(make_forecast=forecast_by("last_week_peak")),
    "fixed coefficient": lambda: SpotQuota(has_feedback=False),
}
PARTS = {"simple placement": "simple_place", "simple preemption": "simple_preempt"}


def ablations(expected: Numbers, medium: Load) -> Findings:
    """What the printed system and ours lose without each part."""
    printed, ours = (_variants(expected, medium, policy) for policy in ("gfs_published", "gfs"))
    checks = (
        *_without(expected, "as printed", printed),
        _order(expected, printed),
        *_without(expected, "as built", ours),
        *_quoted(expected, printed),
    )
    return Findings(checks, (_table("gfs_published", printed), _table("gfs", ours)))


def _variants(expected: Numbers, medium: Load, policy: str) -> dict[str, Metrics]:
    found = {name: _metrics(expected, medium, policy, make()) for name, make in SOURCES.items()}
    return found | {name: _metrics(expected, medium, f"{policy}_{part}", SpotQuota()) for name, part in PARTS.items()}


def _metrics(expected: Numbers, medium: Load, policy: str, source: SpotQuota) -> Metrics:
    return replay(medium.workload, find_policy(policy, source), *window_s(expected)).metrics()


def _without(expected: Numbers, which: str, found: dict[str, Metrics]) -> list[Check]:
    """Without forecast or feedback spot jobs wait longer; without the choice of nodes or victims more work is lost."""
    least, full = expected["ablation_bar"]["least_ratio"], found["full"]
    checks = []
    for name, metrics in found.items():
        if name in PARTS:
            ratio = _ratio(metrics.lost_gpu_s, full.lost_gpu_s)
            checks.append(Check.at_least(f"{which}, lost work with {name} over full", ratio, least))
        elif name != "full":
            ratio = _ratio(metrics.spot_jqt_s.mean, full.spot_jqt_s.mean)
            checks.append(Check.at_least(f"{which}, spot JQT with {name} over full", ratio, least))
    return checks


def _order(expected: Numbers, printed: dict[str, Metrics]) -> Check:
    """The forecast is worth more than the feedback."""
    peak, fixed = (printed[name].spot_jqt_s.mean for name in ("last week's peak", "fixed coefficient"))
    least = expected["ablation_bar"]["least_ratio"]
    return Check.at_least("as printed, last week's peak over a fixed coefficient", _ratio(peak, fixed), least)


def _ratio(without: float, full: float) -> float | None:
    return without / full if full else None


def _quoted(expected: Numbers, printed: dict[str, Metrics]) -> list[Check]:
    part = expected["ablations"]
    full, peak, fixed = (printed[name] for name in SOURCES)
    rows = (
        ("full, spot JQT", full.spot_jqt_s.mean, part["full_jqt_s"], "s"),
        ("full, spot eviction", 100 * full.eviction_rate, part["full_eviction_percent"], "%"),
        ("last week's peak, spot JQT", peak.spot_jqt_s.mean, part["last_week_peak_jqt_s"], "s"),
        ("last week's peak, spot eviction", 100 * peak.eviction_rate, part["last_week_peak_eviction_percent"], "%"),
        ("fixed coefficient, spot JQT", fixed.spot_jqt_s.mean, part["fixed_coefficient_jqt_s"], "s"),
    )
    why = "another trace, other loads; shown, not judged"
    return [
        Check.near(f"as printed, {name}", ours, theirs, 0.1 * theirs, unit=unit, source="unverified", why=why)
        for name, ours, theirs, unit in rows
    ]


def _table(policy: str, metrics: dict[str, Metrics]) -> Table:
    columns = (
        Column("variant"), Column("spot JQT", "s", 1), Column("evictions per period", "%", 2),
        Column("evictions per start", "%", 2), Column("lost", "GPU-h", 1), Column("allocation", "%", 2),
        Column("useful GPU time", "%", 2),
    )  # fmt: skip
    rows: tuple[tuple[Cell, ...], ...] = tuple(
        (
            name, each.spot_jqt_s.mean, 100 * each.eviction_rate, 100 * each.evictions_per_start,
            each.lost_gpu_s / 3600, 100 * each.allocation_rate, 100 * each.useful_rate,
        )
        for name, each in metrics.items()
    )  # fmt: skip
    return Table(
        f"Without parts: {policy}, medium load", columns, rows, "one draw; several are in benchmarks/cluster.py"
    )
