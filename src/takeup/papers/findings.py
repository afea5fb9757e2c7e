"""Result of one part of a reproduction, and the report of all parts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from takeup.core.report import Check, Report, Series, Table
from takeup.papers import PAPERS


class Findings(NamedTuple):
    """One part of the report."""

    checks: tuple[Check, ...]
    tables: tuple[Table, ...] = ()
    series: tuple[Series, ...] = ()


def paper_report(paper: str, seed: int, parts: Sequence[Findings], notes: tuple[str, ...]) -> Report:
    """Concatenate all parts of a paper into a report."""
    return Report(
        PAPERS[paper],
        "papers",
        {"domain": "papers", "verb": "reproduce", "paper": paper},
        seed,
        tuple(table for part in parts for table in part.tables),
        tuple(series for part in parts for series in part.series),
        tuple(check for part in parts for check in part.checks),
        notes,
    )
