"""Edge offloading: which devices offload, over which subcarriers, and when the CPU of the site runs each task.

Public names are loaded on first use, so that importing this package costs nothing.
"""

from takeup.core.lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
