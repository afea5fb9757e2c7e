"""Where instances come from."""

from __future__ import annotations

from takeup.edge.traces.generators import SETTINGS, generate

__all__ = ["SETTINGS", "generate"]
