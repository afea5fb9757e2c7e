"""What tests of commands share: the outcome of a command, and how to read it. The fixture is in conftest.py."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from takeup.core.report import Report

__all__ = ["Outcome", "Run", "assert_one_sentence", "report_of", "rows_of"]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a command left behind."""

    code: int
    out: str
    err: str


Run = Callable[..., Outcome]


def report_of(outcome: Outcome) -> Report:
    """The report that `--json` printed."""
    assert outcome.code == 0, outcome.err
    return Report.from_json(outcome.out)


def rows_of(outcome: Outcome) -> list[dict[str, object]]:
    """The first table of the printed report, by column."""
    table = report_of(outcome).tables[0]
    return [dict(zip([column.name for column in table.columns], row, strict=True)) for row in table.rows]


def assert_one_sentence(outcome: Outcome, *words: str) -> None:
    """A mistake of the user: exit code 2, nothing printed, and one line with these words."""
    assert (outcome.code, outcome.out) == (2, "")
    assert outcome.err.startswith("error: ")
    assert outcome.err.count("\n") == 1
    assert all(word in outcome.err for word in words), outcome.err
