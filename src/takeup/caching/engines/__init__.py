"""Real engines by name. Each is imported on first use, and reports missing requirements."""

from takeup.core.lazy import find

ENGINES = {"local": "takeup.caching.engines.local:LocalEngine"}


def find_engine(name: str) -> type:
    """The class of the engine of this name."""
    engine = find("caching engine", name, ENGINES)
    assert isinstance(engine, type)
    return engine
