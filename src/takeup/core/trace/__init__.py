"""Trace tables: typed columns read from CSV, gzipped CSV and Parquet, with errors that locate the fault.

Names are loaded on first use. Small plain files need no pyarrow; others need the extra `traces`.
"""

from takeup.core.lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
