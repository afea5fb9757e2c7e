"""Trace tables: typed columns read from and written to CSV, gzipped CSV and Parquet, with errors that locate the fault.

Names are loaded on first use: pyarrow, which writing needs and small files do not, takes a while to import.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from takeup.core.lazy import lazy_names

if TYPE_CHECKING:
    from takeup.core.trace.columns import Column
    from takeup.core.trace.read import checksum, column_names, read_table
    from takeup.core.trace.write import write_table

__all__ = ["Column", "checksum", "column_names", "read_table", "write_table"]

__getattr__, __dir__ = lazy_names(
    __name__,
    {"columns": ("Column",), "read": ("checksum", "column_names", "read_table"), "write": ("write_table",)},
)
