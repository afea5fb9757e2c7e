"""What a trace column must hold."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import inf, isfinite, nan
from pathlib import Path
from typing import Literal

from takeup.errors import BadTrace, UnknownName

Kind = Literal["int", "float", "text"]
FORMATS = (".csv", ".csv.gz", ".parquet")

_EXPECTED = {"int": "a whole number", "float": "a number", "text": "text in UTF-8"}
_WHOLE_NUMBER = re.compile(r"\s*-?[0-9]+\s*")
_NOT_UTF8 = re.compile("[\udc80-\udcff]")  # what undecodable bytes become under surrogateescape


@dataclass(frozen=True, slots=True)
class TraceColumn:
    """A column of a trace: its name, its kind and what its cells may hold.

    A column that is not required may be missing or have empty cells; these read as `default`, or without one as nan,
    zero or empty text. Numbers are finite and at least `minimum`.
    """

    name: str
    kind: Kind
    required: bool = True
    default: float | str | None = None
    minimum: float | None = None

    @property
    def fill(self) -> float | str:
        """The value of an empty cell."""
        natural: dict[Kind, float | str] = {"int": 0, "float": nan, "text": ""}
        return natural[self.kind] if self.default is None else self.default

    def problem_with(self, cell: str) -> str | None:
        """What is wrong with a cell as written, and what was expected; None when it can be used."""
        expected = _EXPECTED[self.kind]
        if cell == "" or (self.kind == "float" and cell.strip().lower() in ("nan", "-nan")):
            return f"the cell is empty, but every row needs {expected} here" if self.required else None
        if _NOT_UTF8.search(cell):
            return f"{_escaped(cell)} is not UTF-8; save the file as UTF-8"
        if self.kind == "text":
            return None
        value = _number(cell, self.kind)
        if value is None:
            return f"{cell!r} is not {expected}"
        if value < self.least:
            return f"{cell.strip()} is below {self.minimum}, the least this column allows"
        return None

    @property
    def least(self) -> float:
        """The least number a cell may hold."""
        return -inf if self.minimum is None else self.minimum


def find_columns(
    path: Path, columns: Sequence[TraceColumn], found: Sequence[str], line: int | None = None
) -> list[TraceColumn]:
    """Those of `columns` that the file has; a required one that is missing, or one that is there twice, is an error."""
    present = [column for column in columns if column.name in found]
    for column in columns:
        if column.required and column not in present:
            raise BadTrace(path, str(UnknownName("column", column.name, found)), line=line)
        if found.count(column.name) > 1:
            raise BadTrace(path, "this name heads more than one column; keep one", line=line, column=column.name)
    return present


def table_format(path: Path, formats: Iterable[str] = FORMATS) -> str:
    """The format that the name of the file stands for."""
    for suffix in formats:
        if path.name.lower().endswith(suffix):
            return suffix
    raise BadTrace(path, f"the name does not tell the format; expected it to end in one of {', '.join(formats)}")


def _number(cell: str, kind: Kind) -> float | None:
    if kind == "int":
        return whole if _WHOLE_NUMBER.fullmatch(cell) and -(2**63) <= (whole := int(cell)) < 2**63 else None
    try:
        value = float(cell)
    except ValueError:
        return None
    return value if isfinite(value) and "_" not in cell else None


def _escaped(cell: str) -> str:
    return repr(cell.encode("utf-8", "surrogateescape"))[1:]
