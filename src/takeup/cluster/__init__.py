"""GPU fleet: forecast the demand that must be served, sell the rest with a promise, place and preempt with care.

Public names are loaded on first use, so that importing this package costs nothing.
"""

from takeup.core.lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
