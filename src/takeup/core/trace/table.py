"""Reading trace tables: a fast typed pass, by pyarrow unless the file is small, and a diagnosis when that fails."""

import csv
import gzip
import io
import re
import zlib
from collections import deque
from collections.abc import Generator, Sequence
from contextlib import closing
from dataclasses import dataclass
from math import inf, isfinite, nan
from pathlib import Path
from typing import Any, Literal, TextIO

import numpy as np
import numpy.typing as npt

from takeup.core.extras import need
from takeup.core.limits import text_lines, unpacked
from takeup.errors import BadTrace, UnknownName

Kind = Literal["int", "float", "text"]
FORMATS = (".csv", ".csv.gz", ".parquet")

_EXPECTED = {"int": "a whole number", "float": "a number", "text": "text in UTF-8"}
_WHOLE_NUMBER = re.compile(r"[ \t]*-?[0-9]{1,40}[ \t]*")
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
            return f"{cell[:40]!r} is not {expected}"
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


def table_format(path: Path) -> str:
    """The format that the name of the file stands for."""
    for suffix in FORMATS:
        if path.name.lower().endswith(suffix):
            return suffix
    raise BadTrace(path, f"the name does not tell the format; expected it to end in one of {', '.join(FORMATS)}")


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


# The slow second reading of a CSV file that could not be used: finds the first offending line and column --------------
#
# Parsing a whole file cell by cell in Python takes seconds, so it happens only once the fast reader has given up.


def diagnose(path: Path, columns: Sequence[TraceColumn], reason: str) -> BadTrace:
    """The error that describes the first thing wrong in the file; `reason` serves when every row looks right."""
    if _is_gzip(path):
        deque(read_rows(path), maxlen=0)  # damage, which explains strange cells before it, is raised here
    rows = read_rows(path)
    _, header = next(rows)
    places = [(header.index(column.name), column) for column in columns]
    for line, row in rows:
        if len(row) != len(header):
            return BadTrace(path, f"found {len(row)} cells where the header has {len(header)}", line=line)
        for place, column in places:
            if problem := column.problem_with(row[place]):
                return BadTrace(path, problem, line=line, column=column.name)
    return BadTrace(path, f"cannot be read: {reason}")


def read_rows(path: Path) -> Generator[tuple[int, list[str]], None, None]:
    """Every row that is not blank, header included, with the line it starts on; bytes that are not UTF-8 survive."""
    line = 0
    try:
        with _open_text(path) as file:
            reader = csv.reader(text_lines(path, file))
            for row in reader:
                if row:
                    yield line + 1, row
                line = reader.line_num
    except EOFError as error:
        raise BadTrace(path, "the compressed data ends early; fetch the file again", line=line or None) from error
    except (gzip.BadGzipFile, zlib.error) as error:
        problem = f"the compressed data is damaged ({error}); fetch the file again"
        raise BadTrace(path, problem, line=line or None) from error
    except csv.Error as error:
        raise BadTrace(path, f"is not CSV: {error}", line=line + 1) from error


def _open_text(path: Path) -> TextIO:
    if _is_gzip(path):
        return io.TextIOWrapper(unpacked(path), encoding="utf-8-sig", errors="surrogateescape", newline="")
    return path.open(encoding="utf-8-sig", errors="surrogateescape", newline="")


def _is_gzip(path: Path) -> bool:
    return path.name.lower().endswith(".gz")


# Small CSV files of plain numbers, read without pyarrow, whose import takes longer than such a file -------------------
#
# Only what every reader understands alike is read here: unquoted numbers under a header, each row as long as it.
# Anything else, mistakes included, is left to `arrow`, so that both ways into a table give the same numbers and the
# same errors.

MOST_BYTES = 1_000_000  # beyond it, importing pyarrow pays

_PLAIN = {
    "int": re.compile(r"-?[0-9]{1,18}"),  # any number this short fits into 64 bits
    "float": re.compile(r"-?[0-9]+(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?"),
}


def read_plain(path: Path, columns: Sequence[TraceColumn]) -> dict[str, npt.NDArray[Any]] | None:
    """The columns by name, or None where the file is not small and plain or lacks one of them."""
    rows = _rows(path) if path.name.lower().endswith(".csv") and path.stat().st_size <= MOST_BYTES else []
    if len(rows) < 2 or any(len(row) != len(rows[0]) for row in rows):
        return None
    header = rows[0]
    table = {}
    for column in columns:
        place = header.index(column.name) if header.count(column.name) == 1 else None
        array = None if place is None else _array(column, [row[place] for row in rows[1:]])
        if array is None:
            return None
        table[column.name] = array
    return table


def _rows(path: Path) -> list[list[str]]:
    """The cells of every line that is not empty; none at all where a comma or a line break may not mean one."""
    text = path.read_bytes().replace(b"\r\n", b"\n")
    if not text.isascii() or b'"' in text or b"\r" in text:
        return []
    return [line.split(",") for line in text.decode("ascii").split("\n") if line]


def _array(column: TraceColumn, cells: list[str]) -> npt.NDArray[Any] | None:
    if column.kind == "text" or not all(map(_PLAIN[column.kind].fullmatch, cells)):
        return None
    array = np.array(cells, dtype=np.float64 if column.kind == "float" else np.int64)
    return array if np.isfinite(array).all() and array.min() >= column.least else None


TraceTable = dict[str, npt.NDArray[Any]]


def read_table(path: Path | str, columns: Sequence[TraceColumn]) -> TraceTable:
    """The columns by name: int64, float64 or str objects; those the file lacks hold their default in every row."""
    path = Path(path)
    _require_file(path)
    is_parquet = table_format(path) == ".parquet"
    plain = read_plain(path, columns)
    return _read_any(path, columns, is_parquet=is_parquet) if plain is None else plain


def column_names(path: Path | str) -> list[str]:
    """The columns the file has, in their order."""
    path = Path(path)
    _require_file(path)
    if table_format(path) != ".parquet":
        return _csv_header(path)[1]
    names: list[str] = _arrow(path).parquet_names(path)
    return names


def _arrow(path: Path) -> Any:
    """The module that needs pyarrow."""
    need(f"the table {path}", "traces")
    from takeup.core.trace import arrow

    return arrow


def _require_file(path: Path) -> None:
    if path.is_dir():
        raise BadTrace(path, "is a directory; name a file in it")
    try:
        with path.open("rb") as file:
            is_empty = not file.read(1)
    except OSError as error:
        raise BadTrace(path, f"cannot be opened: {error.strerror or error}; check the path") from error
    if is_empty:
        raise BadTrace(path, "is empty; expected a table")


def _read_any(path: Path, columns: Sequence[TraceColumn], *, is_parquet: bool) -> TraceTable:
    arrow = _arrow(path)
    table = arrow.read_parquet(path, columns) if is_parquet else _read_csv(path, columns)
    num_rows = len(next(iter(table.values()))) if table else 0
    for column in columns:
        if column.name not in table:
            table[column.name] = arrow.empty_column(column, num_rows)
    return {column.name: table[column.name] for column in columns}


def _read_csv(path: Path, columns: Sequence[TraceColumn]) -> TraceTable:
    line, header, has_rows = _csv_header(path)
    present = find_columns(path, columns, header, line)
    if has_rows:
        parsed: TraceTable = _arrow(path).parse_csv(path, present)
        return parsed
    dtypes = {"int": np.int64, "float": np.float64, "text": np.object_}
    return {column.name: np.empty(0, dtypes[column.kind]) for column in present}


def _csv_header(path: Path) -> tuple[int, list[str], bool]:
    """The line of the header, the names in it, and whether any row follows."""
    with closing(read_rows(path)) as rows:
        line, header = next(rows, (1, [""]))
        if not any(header):
            raise BadTrace(path, "is empty; expected a header line with the names of the columns", line=line)
        if any(not name.isprintable() for name in header):
            raise BadTrace(path, "the header is not readable text in UTF-8; save the file as UTF-8", line=line)
        return line, header, next(rows, None) is not None
