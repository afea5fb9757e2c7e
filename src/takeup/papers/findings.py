"""What one part of a reproduction hands back."""

from __future__ import annotations

from typing import NamedTuple

from takeup.core.report import Check, Series, Table

__all__ = ["Findings"]


class Findings(NamedTuple):
    """One part of the report."""

    checks: tuple[Check, ...]
    tables: tuple[Table, ...] = ()
    series: tuple[Series, ...] = ()
