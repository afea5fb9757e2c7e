"""Diffusion pipelines of diffusers, served step by step.

Public names are loaded on first use, so that importing this package costs nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from takeup.core.lazy import lazy_names

if TYPE_CHECKING:
    from takeup.serving.engines.diffusers.steps import StepEngine
    from takeup.serving.engines.diffusers.tiny import tiny

__all__ = ["StepEngine", "tiny"]

_HOMES = {"steps": ("StepEngine",), "tiny": ("tiny",)}

__getattr__, __dir__ = lazy_names(__name__, _HOMES)
