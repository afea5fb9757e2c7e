"""Training: pipeline schedules that hide slow links, and straggler detection.

Public names are imported lazily, so importing this package is cheap.
"""

from takeup.core.lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
