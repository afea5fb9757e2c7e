"""Write trace tables atomically, in the format given by the file name."""

from __future__ import annotations

import gzip
import io
from collections.abc import Mapping
from csv import writer
from pathlib import Path
from typing import Any

import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import csv

from takeup.core.files import write_atomically
from takeup.core.trace.columns import table_format
from takeup.errors import BadInput


def write_table(path: Path | str, columns: Mapping[str, npt.NDArray[Any]]) -> None:
    """Write the columns, all of one length, in their order; the same columns always give the same bytes."""
    path = Path(path)
    encode = {".csv": _csv_bytes, ".csv.gz": _gzip_bytes, ".parquet": _parquet_bytes}[table_format(path)]
    write_atomically(path, encode(_arrow_table(columns)))


def _arrow_table(columns: Mapping[str, npt.NDArray[Any]]) -> pa.Table:
    lengths = {name: len(values) for name, values in columns.items()}
    if len(set(lengths.values())) != 1:
        raise BadInput(f"a table needs at least one column and columns of one length; found lengths {lengths}")
    return pa.table({name: _arrow_column(name, values) for name, values in columns.items()})


def _arrow_column(name: str, values: npt.NDArray[Any]) -> pa.Array:
    try:
        array = pa.array(values, pa.string() if values.dtype.kind in "OU" else None)
    except pa.ArrowException as error:
        raise BadInput(f"column {name!r} cannot be written: {error}; give numbers or text in one dimension") from error
    if not (pa.types.is_integer(array.type) or pa.types.is_floating(array.type) or pa.types.is_string(array.type)):
        raise BadInput(f"column {name!r} holds {array.type}; a table holds whole numbers, numbers and text")
    return array


def _csv_bytes(table: pa.Table) -> bytes:
    header = io.StringIO()
    writer(header, lineterminator="\n").writerow(table.column_names)
    body = io.BytesIO()
    csv.write_csv(table, body, csv.WriteOptions(include_header=False))  # it would quote every name
    return header.getvalue().encode() + body.getvalue()


def _gzip_bytes(table: pa.Table) -> bytes:
    return gzip.compress(_csv_bytes(table), mtime=0)


def _parquet_bytes(table: pa.Table) -> bytes:
    buffer = io.BytesIO()
    pq.write_table(table, buffer)
    return buffer.getvalue()
