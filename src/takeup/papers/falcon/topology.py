"""Node swaps, slow devices gathered in few stages, and one job with both faults."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean
from typing import Any, TypeAlias

from takeup.core.report import Cell, Check, Column, Table
from takeup.papers.findings import Findings
from takeup.training.policies.stragglers.topology import pipeline_s

Numbers: TypeAlias = dict[str, Any]
SEVERITIES = ("weak", "medium", "severe")


def swaps(expected: Numbers) -> Findings:
    """Share of a slowdown removed by swapping nodes, from the printed slowdowns."""
    part = expected["swaps"]
    rows, checks, every = list[tuple[Cell, ...]](), list[Check](), list[float]()
    for num, before, after, known in zip(
        part["num_stages"], part["before"], part["after"], part["removed_percent"], strict=True
    ):
        removed = _removed_percent(before, after)
        every += removed
        names = [f"{num} stages, {severity}" for severity in SEVERITIES]
        rows += zip(names, before, after, removed, strict=True)
        checks.append(
            Check.near(f"{num} stages, mean share removed", fmean(removed), known, part["tolerance"], unit="%")
        )
    best = part["best_removed_percent"]
    checks.append(Check.near("largest share removed", max(every), best, part["tolerance"], unit="%"))
    columns = (Column("congested"), Column("before", "x", 2), Column("after", "x", 2), Column("removed", "%", 1))
    note = "an exchange in a real job, foretold and measured, is in benchmarks/stragglers.py, part restart"
    return Findings(tuple(checks), (Table("Nodes exchanged for a congested link", columns, tuple(rows), note),))


def _removed_percent(before: Sequence[float], after: Sequence[float]) -> list[float]:
    return [100 * (slow - left) / (slow - 1) for slow, left in zip(before, after, strict=True)]


def gathering(expected: Numbers) -> Findings:
    """Cost of slow devices in one stage of four, and in more of them."""
    part = expected["gathered"]
    rows, checks = list[tuple[Cell, ...]](), []
    num_stages, number = max(part["num_slow_stages"]), part["num_microbatches"]
    healthy_s = pipeline_s([1.0] * num_stages, number)
    for num_slow, before, after in zip(part["num_slow_stages"], part["before"], part["after"], strict=True):
        stages_s = [part["factor"]] * num_slow + [1.0] * (num_stages - num_slow)
        ours = pipeline_s(stages_s, number) / healthy_s
        rows.append((num_slow, before, ours, after))
        checks.append(Check.near(f"slow devices in {num_slow} of 4 stages", ours, before, part["tolerance"], unit="x"))
    titles = ("before, paper", "before, ours", "gathered, paper")
    columns = (Column("stages with slow devices"), *(Column(title, "x", 2) for title in titles))
    note = (
        f"ours: {number} micro-batches and devices {part['factor']:g} times as slow, which fits the printed slowdowns; "
        "by the same formula one slow stage alone costs what stands in the first row, and gathering cannot go below"
    )
    return Findings(tuple(checks), (Table("Slow devices gathered in few stages", columns, tuple(rows), note),))


def compound_faults(expected: Numbers) -> Findings:
    """One job that is hit twice; the throughput recovered each time."""
    part = expected["compound"]
    rows = [
        (what, part["healthy"], slow, helped, 100 * (helped - slow) / (part["healthy"] - slow))
        for what, slow, helped in zip(part["what"], part["slow"], part["helped"], strict=True)
    ]
    rates = (Column(name, "it/s", 1) for name in ("healthy", "slow", "mitigated"))
    columns = (Column("what happened"), *rates, Column("recovered", "%", 1))
    return Findings((), (Table("One job that is hit twice", columns, tuple(rows)),))
