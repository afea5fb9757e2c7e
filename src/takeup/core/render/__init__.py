"""Reports drawn: as text, web page and charts; the only part of the product that formats.

Names are loaded on first use, so that a command pays only for what it draws.
"""

from takeup.core.lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
