"""Diffusion pipelines of diffusers, served step by step.

Public names are loaded on first use, so that importing this package costs nothing.
"""

from takeup.core.lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
