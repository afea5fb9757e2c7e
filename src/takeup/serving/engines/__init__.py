"""Real engines by name. Each is imported on first use and raises an error that names a missing dependency."""

from __future__ import annotations

from takeup.core.lazy import find

ENGINES = {"diffusers": "takeup.serving.engines.diffusers:StepEngine"}


def find_engine(name: str) -> type:
    """The class of the engine of this name."""
    engine = find("serving engine", name, ENGINES)
    assert isinstance(engine, type)
    return engine
