"""Reading trace tables: a fast typed pass by pyarrow, and an exact diagnosis when that fails."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from hashlib import file_digest
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import csv

from takeup.core.trace.columns import Column, array_of, find_columns, table_format
from takeup.core.trace.diagnose import diagnose, read_rows
from takeup.errors import BadTrace

__all__ = ["checksum", "column_names", "read_table"]

Table = dict[str, npt.NDArray[Any]]


def read_table(path: Path | str, columns: Sequence[Column]) -> Table:
    """The columns by name: int64, float64 or str objects; those the file lacks hold their default in every row."""
    path = Path(path)
    _require_file(path)
    read = _read_parquet if table_format(path) == ".parquet" else _read_csv
    table = read(path, columns)
    num_rows = len(next(iter(table.values()))) if table else 0
    for column in columns:
        if column.name not in table:
            table[column.name] = array_of(column, pa.chunked_array([pa.nulls(num_rows, column.arrow_type)]))[0]
    return {column.name: table[column.name] for column in columns}


def column_names(path: Path | str) -> list[str]:
    """The columns the file has, in their order."""
    path = Path(path)
    _require_file(path)
    if table_format(path) != ".parquet":
        return _csv_header(path)[1]
    with _opened_parquet(path) as file:
        return list(file.schema_arrow.names)


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


def _read_csv(path: Path, columns: Sequence[Column]) -> Table:
    line, header, has_rows = _csv_header(path)
    present = find_columns(path, columns, header, line)
    if not has_rows:
        return {column.name: np.empty(0, column.arrow_type.to_pandas_dtype()) for column in present}
    return _parse_csv(path, present)


def _csv_header(path: Path) -> tuple[int, list[str], bool]:
    """The line of the header, the names in it, and whether any row follows."""
    with closing(read_rows(path)) as rows:
        line, header = next(rows, (1, [""]))
        if not any(header):
            raise BadTrace(path, "is empty; expected a header line with the names of the columns", line=line)
        if any(not name.isprintable() for name in header):
            raise BadTrace(path, "the header is not readable text in UTF-8; save the file as UTF-8", line=line)
        return line, header, next(rows, None) is not None


def _parse_csv(path: Path, present: Sequence[Column]) -> Table:
    options = csv.ConvertOptions(
        column_types={column.name: column.arrow_type for column in present},
        include_columns=[column.name for column in present],
        null_values=[""],
        strings_can_be_null=True,
    )
    parsing = csv.ParseOptions(newlines_in_values=True)
    try:
        table = csv.read_csv(path, parse_options=parsing, convert_options=options)
    except (pa.ArrowException, OSError) as error:
        raise diagnose(path, present, str(error)) from error
    arrays = {column.name: array_of(column, table[column.name]) for column in present}
    if any(is_bad.any() for _, is_bad in arrays.values()):
        raise diagnose(path, present, "a cell is out of range")
    return {name: array for name, (array, _) in arrays.items()}


def _read_parquet(path: Path, columns: Sequence[Column]) -> Table:
    with _opened_parquet(path) as file:
        present = find_columns(path, columns, file.schema_arrow.names)
        table = file.read(columns=[column.name for column in present])
    return {column.name: _parquet_array(path, column, table[column.name]) for column in present}


@contextmanager
def _opened_parquet(path: Path) -> Iterator[pq.ParquetFile]:
    try:
        with pq.ParquetFile(path) as file:
            yield file
    except (pa.ArrowException, OSError) as error:
        raise BadTrace(path, f"is damaged, or not Parquet ({error}); fetch the file again") from error


def _parquet_array(path: Path, column: Column, values: pa.ChunkedArray) -> npt.NDArray[Any]:
    if not _fits(column, values.type):
        raise BadTrace(path, f"holds {values.type}, expected {column.kind}", column=column.name)
    try:
        array, is_bad = array_of(column, values.cast(column.arrow_type))
    except pa.ArrowException as error:
        raise BadTrace(path, f"does not fit into {column.arrow_type}: {error}", column=column.name) from error
    if is_bad.any():
        row = int(is_bad.argmax())
        cell = values[row].as_py()
        problem = column.problem_with("" if cell is None else str(cell))
        raise BadTrace(path, f"row {row + 1}: {problem}", column=column.name)
    return array


def _fits(column: Column, found: pa.DataType) -> bool:
    if pa.types.is_null(found):
        return True
    if column.kind == "text":
        plain = found.value_type if pa.types.is_dictionary(found) else found
        return bool(pa.types.is_string(plain) or pa.types.is_large_string(plain))
    is_whole = bool(pa.types.is_integer(found))
    return is_whole or (column.kind == "float" and bool(pa.types.is_floating(found) or pa.types.is_decimal(found)))
