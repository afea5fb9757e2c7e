"""Slurm as an engine: a controller alongside a stock Slurm, through its command-line programs."""

from takeup.core.lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
