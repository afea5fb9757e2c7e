"""The workloads: what each calls, how much memory it gets, under which policies it runs, and the bars it must hold."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

STOCK = "stock"
AGAIN = "stock@again"  # a second application of stock Spark: how much two that are the same differ
PLAIN = (STOCK, "lru", "dag")


@dataclass(frozen=True, slots=True)
class Workload:
    """One application. `memory_fraction` is Spark's setting: of 600 MB less 300, the part for blocks and execution.

    `policies` with `@profile` start with the graph of an earlier run, those with `@prefetch` read ahead. The bars are
    ratios of task CPU to stock.
    """

    name: str
    call: tuple[Any, ...]
    memory_fraction: float
    policies: tuple[str, ...] = PLAIN
    task_cpu_bars: dict[str, float] = field(default_factory=dict)


def is_stock(policy: str) -> bool:
    """Whether Spark runs without the plug-in."""
    return policy.partition("@")[0] == STOCK


WORKLOADS = (
    Workload(
        "iterative",
        ("Workloads.iterate", 100, 131_072, 20, 6, "MEMORY_ONLY"),
        0.244,
        (STOCK, "lru", "lrc+admission", "dag"),
        {"lrc+admission": 0.65, "dag": 0.60},
    ),
    Workload(
        "zip",
        ("Workloads.zip", 5, 20, 131_072, 10, "MEMORY_ONLY"),
        0.22,
        (STOCK, "lru", "lerc@profile", "lerc+admission@profile", "dag@profile"),
    ),
    Workload(
        "pagerank",
        ("Graphs.pageRank", 30_000, 8, 6),
        0.06,
        (STOCK, "lru", "dag@profile", "dag"),
        {"dag@profile": 0.75},
    ),
    Workload("pagerank, little memory", ("Graphs.pageRank", 30_000, 8, 6), 0.03),
    Workload("components", ("Graphs.components", 30_000, 8, 6), 0.06, (STOCK, AGAIN, "lru", "dag")),
    Workload("svd++", ("Graphs.svdPlusPlus", 20_000, 2_000, 8, 3), 0.045),
    Workload("pregel", ("Graphs.pregel", 6_000, 8), 0.03),
    Workload("scan on disk", ("Workloads.scan", 150, 131_072, 8, 4, "MEMORY_AND_DISK"), 0.14),
    Workload("back from disk", ("Workloads.comeBack", 26, 524_288, 6, 20), 0.2, (STOCK, "lru", "dag", "dag@prefetch")),
    Workload("sql", ("sql", 6, 900_000, 12), 0.06, (STOCK, AGAIN, "lru", "dag")),
    Workload("star", ("star", 400_000, 6), 0.04),
    Workload("als", ("als", 60_000, 4_000, 3), 0.03),
    Workload("many small", ("Workloads.pairs", 60, 8, 8_192, 40, 120), 0.03, (STOCK, AGAIN, "lru", "dag")),
    Workload("checkpoints", ("Workloads.checkpoints", 60, 131_072, 10, 8), 0.2),
)
