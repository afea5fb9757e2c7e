"""Reading trace tables: a fast typed pass, by pyarrow unless the file is small, and a diagnosis when that fails."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from hashlib import file_digest
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from takeup.core.trace.columns import TraceColumn, find_columns, table_format
from takeup.core.trace.diagnose import read_rows
from takeup.core.trace.plain import read_plain
from takeup.errors import BadTrace

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
    from takeup.core.trace.arrow import parquet_names

    return parquet_names(path)


def checksum(path: Path | str) -> str:
    """The SHA-256 of the file's bytes, in hexadecimal."""
    path = Path(path)
    _require_file(path)
    with path.open("rb") as file:
        return file_digest(file, "sha256").hexdigest()


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
    from takeup.core.trace.arrow import empty_column, read_parquet

    table = read_parquet(path, columns) if is_parquet else _read_csv(path, columns)
    num_rows = len(next(iter(table.values()))) if table else 0
    for column in columns:
        if column.name not in table:
            table[column.name] = empty_column(column, num_rows)
    return {column.name: table[column.name] for column in columns}


def _read_csv(path: Path, columns: Sequence[TraceColumn]) -> TraceTable:
    from takeup.core.trace.arrow import parse_csv

    line, header, has_rows = _csv_header(path)
    present = find_columns(path, columns, header, line)
    if has_rows:
        return parse_csv(path, present)
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
