"""Trace tables by pyarrow: CSV and Parquet of any size."""

import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import csv

from takeup.core.limits import check_rows, unpacked
from takeup.core.trace.table import TraceColumn, diagnose, find_columns
from takeup.errors import BadTrace

TraceTable = dict[str, npt.NDArray[Any]]

_TYPES = {"int": pa.int64(), "float": pa.float64(), "text": pa.string()}


def parse_csv(path: Path, present: Sequence[TraceColumn]) -> TraceTable:
    """The columns of a CSV file that has rows; the first cell that cannot be used is named in the error."""
    options = csv.ConvertOptions(
        column_types={column.name: _TYPES[column.kind] for column in present},
        include_columns=[column.name for column in present],
        null_values=[""],
        strings_can_be_null=True,
    )
    parsing = csv.ParseOptions(newlines_in_values=True)
    try:
        source = unpacked(path) if path.name.lower().endswith(".gz") else path
        table = csv.read_csv(source, parse_options=parsing, convert_options=options)
    except (pa.ArrowException, OSError, EOFError, zlib.error) as error:
        raise diagnose(path, present, str(error)) from error
    arrays = {column.name: _array_of(column, table[column.name]) for column in present}
    if any(is_bad.any() for _, is_bad in arrays.values()):
        raise diagnose(path, present, "a cell is out of range")
    return {name: array for name, (array, _) in arrays.items()}


def read_parquet(path: Path, columns: Sequence[TraceColumn]) -> TraceTable:
    """Those of the columns that the file has."""
    with _opened_parquet(path) as file:
        present = find_columns(path, columns, file.schema_arrow.names)
        table = file.read(columns=[column.name for column in present])
        if table.num_columns and table.num_rows != file.metadata.num_rows:
            found = f"{table.num_rows} of {file.metadata.num_rows} rows"
            raise BadTrace(path, f"is damaged: {found} can be read; fetch the file again")
    return {column.name: _parquet_array(path, column, table[column.name]) for column in present}


def parquet_names(path: Path) -> list[str]:
    """The columns that the file has, in their order."""
    with _opened_parquet(path) as file:
        return list(file.schema_arrow.names)


def empty_column(column: TraceColumn, num_rows: int) -> npt.NDArray[Any]:
    """A column that the file lacks: its default in every row."""
    return _array_of(column, pa.chunked_array([pa.nulls(num_rows, _TYPES[column.kind])]))[0]


def _array_of(column: TraceColumn, values: pa.ChunkedArray) -> tuple[npt.NDArray[Any], npt.NDArray[np.bool_]]:
    """The column as a numpy array with empty cells filled, and which rows cannot be used."""
    is_empty = values.is_null().to_numpy()
    array = values.fill_null(column.fill).to_numpy()
    is_bad = np.zeros(len(array), dtype=bool)
    if column.kind == "text":
        is_empty = is_empty | pc.equal(values, "").fill_null(True).to_numpy()
    else:
        is_empty = is_empty | np.isnan(array)
        is_bad = ~is_empty & ((array < column.least) | np.isinf(array))
    if is_empty.any():
        array = np.where(is_empty, column.fill, array).astype(array.dtype)
    return np.require(array, requirements="W"), is_bad | (is_empty & column.required)


@contextmanager
def _opened_parquet(path: Path) -> Iterator[pq.ParquetFile]:
    try:
        with pq.ParquetFile(path) as file:
            check_rows(path, file.metadata.num_rows)
            yield file
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise BadTrace(path, f"is damaged, or not Parquet ({error}); fetch the file again") from error


def _parquet_array(path: Path, column: TraceColumn, values: pa.ChunkedArray) -> npt.NDArray[Any]:
    if not _fits(column, values.type):
        raise BadTrace(path, f"holds {values.type}, expected {column.kind}", column=column.name)
    arrow_type = _TYPES[column.kind]
    try:
        array, is_bad = _array_of(column, values.cast(arrow_type))
    except pa.ArrowException as error:
        raise BadTrace(path, f"does not fit into {arrow_type}: {error}", column=column.name) from error
    if is_bad.any():
        row = int(is_bad.argmax())
        cell = values[row].as_py()
        problem = column.problem_with("" if cell is None else str(cell))
        raise BadTrace(path, f"row {row + 1}: {problem}", column=column.name)
    return array


def _fits(column: TraceColumn, found: pa.DataType) -> bool:
    if pa.types.is_null(found):
        return True
    if column.kind == "text":
        plain = found.value_type if pa.types.is_dictionary(found) else found
        return bool(pa.types.is_string(plain) or pa.types.is_large_string(plain))
    is_whole = bool(pa.types.is_integer(found))
    return is_whole or (column.kind == "float" and bool(pa.types.is_floating(found) or pa.types.is_decimal(found)))
