"""Real training engines by name. Each is imported lazily; a missing dependency is named in the error."""

from __future__ import annotations

from takeup.core.lazy import find

ENGINES = {"pytorch": "takeup.training.engines.pytorch:AdaptiveSchedule"}


def find_engine(name: str) -> type:
    """Return the engine class with this name."""
    engine = find("training engine", name, ENGINES)
    assert isinstance(engine, type)
    return engine
