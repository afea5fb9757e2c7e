"""Calibrate a simulator design from the Prometheus metrics page of a running server.

Step costs are the mean durations of step-loop iterations that ran *alone*. The contention share is the extra time of
*shared* iterations per second of concurrent prepare and finish work.
"""

from __future__ import annotations

from collections import Counter
from importlib import import_module
from typing import Any

from takeup.errors import BadScenario
from takeup.serving.traffic import Design, RowCosts

PREFIX = "takeup_serving_"
FEW_TURNS = 5
Counts = Counter[tuple[str, ...]]
"""Counts and seconds by name and labels. Two pages can be subtracted: what happened between them."""


def counts_of(page: str) -> Counts:
    """All counters with the prefix `takeup_serving_` on a metrics page."""
    families: Any = import_module("prometheus_client.parser").text_string_to_metric_families(page)
    counts: Counts = Counter()
    for sample in (sample for family in families for sample in family.samples):
        if sample.name.startswith(PREFIX) and sample.name.endswith("_total"):
            name = sample.name.removeprefix(PREFIX).removesuffix("_total")
            counts[name, *(sample.labels[label] for label in sorted(sample.labels, reverse=True))] = sample.value
    return counts


def measured_design(counts: Counts, name: str = "server", max_running: int = 16) -> Design:
    """A simulator design with the costs that the server measured."""
    alone_s = {rows: _mean(counts, rows, "alone") for rows in _rows(counts, "alone")}
    if not alone_s:
        raise BadScenario("the metrics have no turns of the step loop alone; let the server make some images first")
    return Design(
        name,
        RowCosts(tuple(sorted(alone_s.items()))),
        max_running=max_running,
        before_s=counts[("prepare_seconds",)] / max(1, counts[("prepare_calls",)]),
        after_s=counts[("finish_seconds",)] / max(1, counts[("finish_calls",)]),
        contention_share=_contention_share(counts, RowCosts(tuple(sorted(alone_s.items())))),
    )


def _contention_share(counts: Counts, alone: RowCosts) -> float:
    """Extra seconds of loop iterations per second of concurrent work."""
    shared = _rows(counts, "shared", least=1)
    longer_s = sum(
        counts["turn_seconds", str(rows), "shared"] - counts["turns", str(rows), "shared"] * alone(rows)
        for rows in shared
    )
    return max(0.0, longer_s / counts[("beside_seconds",)]) if counts[("beside_seconds",)] else 0.0


def _rows(counts: Counts, company: str, least: int = FEW_TURNS) -> list[int]:
    """The batch sizes, in rows, with at least `least` measured iterations."""
    return [int(key[1]) for key, number in counts.items() if key[::2] == ("turns", company) and number >= least]


def _mean(counts: Counts, rows: int, company: str) -> float:
    return counts["turn_seconds", str(rows), company] / counts["turns", str(rows), company]
