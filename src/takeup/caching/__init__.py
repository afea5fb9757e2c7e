"""Caching: which block to evict first, when the engine knows the future readers of each block.

Public names are loaded on first use, so that importing this package costs nothing.
"""

from takeup.core.lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
