"""Trace tables: typed columns read from and written to CSV, gzipped CSV and Parquet, with errors that name the spot."""

from __future__ import annotations

from takeup.core.trace.columns import Column
from takeup.core.trace.read import checksum, column_names, read_table
from takeup.core.trace.write import write_table

__all__ = ["Column", "checksum", "column_names", "read_table", "write_table"]
