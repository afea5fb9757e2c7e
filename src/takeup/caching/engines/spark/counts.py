"""What the plug-in counted: as an object, as a report, and as text for Prometheus."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from takeup.core.report import Column, Report, Table
from takeup.errors import BadInput


@dataclass(frozen=True, slots=True)
class SparkCounts:
    """The counters of one application, summed over its executors.

    `accesses` are block reads of successful tasks, of blocks that had been made before; a hit found the block in some
    executor's memory; an effective hit is one of a task that missed nothing. `recomputed_blocks` were made again or
    read back from disk, `prefetches` read back before a task read them. `inactive_bytes` are in memory without a known
    reader.
    """

    policy: str
    is_active: bool
    installed: int = 0
    accesses: int = 0
    hits: int = 0
    effective_hits: int = 0
    puts: int = 0
    recomputed_blocks: int = 0
    evictions: int = 0
    evictions_with_references: int = 0
    refused: int = 0
    prefetches: int = 0
    broadcasts: int = 0
    inactive_bytes: int = 0
    choices: int = 0
    choice_ns: int = 0
    failures: int = 0
    driver_failures: int = 0
    driver_groups: int = 0
    groups: int = 0
    jobs_foretold: int = 0
    jobs_not_foretold: int = 0
    tasks: int = 0
    task_cpu_s: float = 0.0
    process_cpu_ns: int = 0
    listener_s: float = 0.0

    @property
    def hit_share(self) -> float:
        return self.hits / max(1, self.accesses)

    @property
    def effective_hit_share(self) -> float:
        return self.effective_hits / max(1, self.accesses)

    @classmethod
    def from_json(cls, text: str) -> SparkCounts:
        """From what the plug-in wrote."""
        try:
            values: Mapping[str, Any] = json.loads(text)
            return cls(**{field.name: values[field.name] for field in fields(cls) if field.name in values})
        except (TypeError, ValueError, KeyError) as error:
            raise BadInput(f"these are no counters of the Spark plug-in ({error}); give the file it wrote") from error


_TEXTS = {"policy", "is_active"}
_GAUGES = {"installed", "inactive_bytes", "driver_groups", "groups"}


def prometheus(counts: SparkCounts) -> str:
    """The counters in Prometheus's text format."""
    lines = []
    for field in fields(counts):
        if field.name not in _TEXTS:
            is_gauge = field.name in _GAUGES
            name = f"takeup_caching_spark_{field.name}{'' if is_gauge else '_total'}"
            lines.append(f"# TYPE {name} {'gauge' if is_gauge else 'counter'}")
            lines.append(f'{name}{{policy="{counts.policy}"}} {getattr(counts, field.name)}')
    return "\n".join(lines) + "\n"


def counts_report(counts: SparkCounts, title: str) -> Report:
    """One row: what the policy did in this application."""
    columns = (
        Column("policy"),
        Column("hits"),
        Column("effective"),
        Column("made"),
        Column("again"),
        Column("evicted"),
        Column("in use"),
        Column("refused"),
        Column("broadcast"),
        Column("inactive", "MB", digits=1),
        Column("task CPU", "s", digits=2),
    )
    row = (
        counts.policy,
        counts.hit_share,
        counts.effective_hit_share,
        counts.puts,
        counts.recomputed_blocks,
        counts.evictions,
        counts.evictions_with_references,
        counts.refused,
        counts.broadcasts,
        counts.inactive_bytes / 1e6,
        counts.task_cpu_s,
    )
    note = "hits and effective hits: per block access; again: blocks made again; in use: evicted with a known reader"
    scenario = {"engine": "spark", "policy": counts.policy}
    return Report(title, "caching", scenario, 0, (Table("Spark's memory", columns, (row,), note),))
