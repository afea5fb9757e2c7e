"""Serve diffusion models where each request brings its own LoRAs and ControlNets.

Public names are loaded on first use, so that importing this package costs nothing.
"""

from takeup.core.lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
