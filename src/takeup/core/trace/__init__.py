"""Trace tables: typed columns read from and written to CSV, gzipped CSV and Parquet, with errors that locate the fault.

Names are loaded on first use: pyarrow, which writing needs and small files do not, takes a while to import.
"""

from takeup.core.lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
