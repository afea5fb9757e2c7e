"""Trace tables as files, for tests: the same columns always give the same bytes."""

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
from takeup.core.trace.table import table_format


def write_table(path: Path, columns: Mapping[str, npt.NDArray[Any]]) -> None:
    """Write the columns, all of one length, in their order, in the format that the name of the file stands for."""
    encode = {".csv": _csv_bytes, ".csv.gz": _gzip_bytes, ".parquet": _parquet_bytes}[table_format(path)]
    arrays = {name: pa.array(it, pa.string() if it.dtype.kind in "OU" else None) for name, it in columns.items()}
    write_atomically(path, encode(pa.table(arrays)))


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
