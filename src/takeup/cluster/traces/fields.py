"""The cells of a trace, with a word about each row that cannot be used.

How it works. A strict reading refuses the file at the first cell that cannot be used, and names it. Otherwise the file
is read fast where every number is one; where some are not, cell by cell. Either way a row with a cell that is missing,
not finite or too small is not used, and the first thing wrong with it is counted.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from takeup.core.arrays import Bools
from takeup.core.trace import TraceColumn, column_names, read_table
from takeup.core.trace.table import find_columns
from takeup.errors import BadTrace


@dataclass(frozen=True, slots=True)
class Field:
    """A column: a number, a moment (seconds, or a date and time, taken as UTC without a zone), or text.

    Without a default, every row needs it. `above` and `least` bound numbers.
    """

    name: str
    kind: Literal["number", "moment", "text"] = "number"
    least: float = -math.inf
    above: float = -math.inf
    default: float | str | None = None

    def problem(self, values: npt.NDArray[Any]) -> tuple[tuple[Bools, str], ...]:
        """Which cells cannot be used, and why."""
        if self.kind == "text":
            return () if self.default is not None else ((values == "", f"{self.name} is missing"),)
        small = (values < self.least) | (values <= self.above)
        bound = f"above {self.above:g}" if self.above > -math.inf else f"at least {self.least:g}"
        return (
            (~np.isfinite(values), f"{self.name} is missing or not a finite number"),
            (small, f"{self.name} is not {bound}"),
        )


@dataclass(slots=True)
class TraceRows:
    """Columns of equal length, which rows are used, and why the others are not."""

    path: Path
    columns: dict[str, npt.NDArray[Any]]
    used: Bools
    skipped: dict[str, int] = field(default_factory=dict)

    def __getitem__(self, name: str) -> npt.NDArray[Any]:
        """The used cells of a column."""
        return self.columns[name][self.used]

    def __len__(self) -> int:
        return int(self.used.sum())

    def skip(self, wrong: Bools, reason: str) -> None:
        """Use none of these rows any more; `wrong` has an entry for every row of the file."""
        new = wrong & self.used
        if new.any():
            self.skipped[reason] = self.skipped.get(reason, 0) + int(new.sum())
            self.used = self.used & ~new

    def refuse(self, wrong: Bools, reason: str, column: str) -> None:
        """An error about the first of these rows, if there is one."""
        if (wrong & self.used).any():
            row = int(np.argmax(wrong & self.used))
            found = f"{reason} (found {self.columns[column][row]}); correct the row or read without strict"
            raise _bad_row(self.path, found, row, column)

    def check(self, wrong: Bools, reason: str, column: str, *, strict: bool) -> None:
        """Refuse or skip."""
        if strict:
            self.refuse(wrong, reason, column)
        self.skip(wrong, reason)


def read_fields(path: Path, fields: Sequence[Field], *, strict: bool = False) -> TraceRows:
    """The rows of a table that have all fields."""
    needed = [TraceColumn(each.name, "text") for each in fields if each.default is None]
    find_columns(path, needed, column_names(path))
    columns = _read(path, fields, strict=strict)
    rows = TraceRows(path, columns, np.ones(len(next(iter(columns.values()))), np.bool_))
    for each in fields:
        for wrong, reason in each.problem(columns[each.name]):
            rows.check(wrong, reason, each.name, strict=strict)
    return rows


def _read(path: Path, fields: Sequence[Field], *, strict: bool) -> dict[str, npt.NDArray[Any]]:
    """All cells; where a fast reading fails, moments as text, and numbers too unless they must be right."""
    try:
        return read_table(path, [_typed(each, strict=strict) for each in fields])
    except BadTrace:
        is_loose = not strict and path.name.lower().endswith((".csv", ".csv.gz"))
        if not is_loose and all(each.kind != "moment" for each in fields):
            raise
    loose = {"moment", "number"} if is_loose else {"moment"}
    columns = [_text(each) if each.kind in loose else _typed(each, strict=strict) for each in fields]
    texts = read_table(path, columns)
    return {each.name: _cells(path, each, texts[each.name], strict=strict) for each in fields}


def _typed(each: Field, *, strict: bool) -> TraceColumn:
    kind: Literal["float", "text"] = "text" if each.kind == "text" else "float"
    minimum = each.least if strict and each.least > -math.inf else None
    return TraceColumn(each.name, kind, required=each.default is None and strict, default=each.default, minimum=minimum)


def _text(each: Field) -> TraceColumn:
    return TraceColumn(each.name, "text", required=False)


def _cells(path: Path, each: Field, texts: npt.NDArray[Any], *, strict: bool) -> npt.NDArray[Any]:
    if each.kind == "text" or texts.dtype != np.object_:
        return texts
    empty = math.nan if each.default is None else float(each.default)
    read = _moment if each.kind == "moment" else _number
    values = np.array([empty if cell == "" else read(cell) for cell in texts.tolist()], np.float64)
    if strict and np.isnan(values).any():
        row = int(np.argmax(np.isnan(values)))
        expected = "seconds, or a date and time such as 2024-03-01 08:30:00"
        raise _bad_row(path, f"{texts[row]!r} is no moment; expected {expected}", row, each.name)
    return values


def _bad_row(path: Path, problem: str, row: int, column: str) -> BadTrace:
    """The line of a CSV file is that of its rows after the header; Parquet has rows only."""
    if path.name.lower().endswith(".parquet"):
        return BadTrace(path, f"row {row + 1}: {problem}", column=column)
    return BadTrace(path, problem, line=row + 2, column=column)


def _number(cell: str) -> float:
    try:
        return float(cell)
    except ValueError:
        return math.nan


def _moment(cell: str) -> float:
    seconds = _number(cell)
    if not math.isnan(seconds):
        return seconds
    try:
        when = datetime.fromisoformat(cell.strip())
    except ValueError:
        return math.nan
    return (when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp()
