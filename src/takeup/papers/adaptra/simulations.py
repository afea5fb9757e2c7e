"""Figures 4 and 5, and Theorem 1: a delay within the slack of a schedule is paid once, beyond it repeatedly."""

from __future__ import annotations

from takeup.core.report import Cell, Check, Column, Series, Table
from takeup.papers.adaptra.pipelines import Numbers, iteration_ms, profile_with_latencies
from takeup.papers.findings import Findings
from takeup.training.policies.adaptra import Adaptra
from takeup.training.report import gantt
from takeup.training.timing.runs import generate_schedule, timeline_of

ZERO_BUBBLE = (7, 5, 3, 1)  # 2 (S - i) - 1 forwards before the first backward


def figures(expected: Numbers) -> Findings:
    """A fixed and an adapted schedule on four stages, with a chart of each at the larger delay."""
    part = expected["figures"]
    kept = generate_schedule(profile_with_latencies(expected, 4, 12, {}), ZERO_BUBBLE)
    checks, charts = [], []
    for delay_ms, known in part["kept"].items():
        ours = iteration_ms(kept, profile_with_latencies(expected, 4, 12, {0: float(delay_ms)}))
        checks.append(_exact_check(f"Figures 4 and 5, kept schedule, delay {delay_ms} ms", ours, known, part["source"]))
    for delay_ms, known in part["adapted"].items():
        profile = profile_with_latencies(expected, 4, 12, {0: float(delay_ms)})
        adapted = Adaptra().plan(profile).schedule
        ours = iteration_ms(adapted, profile)
        checks.append(
            _exact_check(f"Figures 4 and 5, adapted schedule, delay {delay_ms} ms", ours, known, part["source"])
        )
    delayed = profile_with_latencies(expected, 4, 12, {0: 20.0})
    for title, schedule in (("kept", kept), ("adapted", Adaptra().plan(delayed).schedule)):
        charts.append(gantt(timeline_of(schedule, delayed), f"20 ms on the first link, {title} schedule"))
    return Findings(tuple(checks), series=tuple(charts))


def theorem(expected: Numbers) -> Findings:
    """Added time by delay and slackness: once up to (D - 1) t, then for every group of micro-batches."""
    part, delays_ms = expected["theorem"], expected["theorem"]["delays_ms"]
    rows: list[tuple[Cell, ...]] = []
    points: list[dict[str, Cell]] = []
    checks = []
    for slackness, known in part["extra_ms"].items():
        ours = _extra_ms(expected, int(slackness), delays_ms)
        rows.append((int(slackness), *ours))
        points += [{"D": slackness, "delay": d, "added": e} for d, e in zip(delays_ms, ours, strict=True)]
        for delay_ms, extra_ms, known_ms in zip(delays_ms, ours, known, strict=True):
            name = f"Theorem 1, slackness {slackness}, added by a delay of {delay_ms} ms"
            checks.append(_exact_check(name, extra_ms, known_ms, part["source"]))
        absorbed = [d for d, extra_ms in zip(delays_ms, ours, strict=True) if extra_ms == d]
        knee_ms = (int(slackness) - 1) * expected["setting"]["op_ms"]
        checks.append(
            _exact_check(f"Theorem 1, slackness {slackness}, largest delay absorbed", max(absorbed), knee_ms, "paper")
        )
    columns = (Column("slackness"), *(Column(f"{delay} ms", "ms", 0) for delay in delays_ms))
    table = Table("Added to the iteration by a delay, 2 stages and 30 micro-batches", columns, tuple(rows))
    chart = Series("Theorem 1", "delay", "added", tuple(points), "D", None, "ms", "ms")
    return Findings(tuple(checks), (table,), (chart,))


def _extra_ms(expected: Numbers, slackness: int, delays_ms: list[float]) -> list[float]:
    warmups, op_ms = (slackness + 1, 1), expected["setting"]["op_ms"]
    schedule = generate_schedule(
        profile_with_latencies(expected, 2, 30, {0: (slackness - 1) * op_ms}), warmups, flights=warmups
    )
    healthy_ms = iteration_ms(schedule, profile_with_latencies(expected, 2, 30, {}))
    return [
        iteration_ms(schedule, profile_with_latencies(expected, 2, 30, {0: delay})) - healthy_ms for delay in delays_ms
    ]


def _exact_check(name: str, ours: float, known: float, source: str) -> Check:
    return Check.near(name, ours, known, 1e-6, unit="ms", source="paper" if source == "paper" else "measured")
