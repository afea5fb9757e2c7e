"""Real engines by name. Each is imported only when it is asked for, and says what it needs when that is missing."""

from __future__ import annotations

from importlib import import_module

from takeup.errors import UnknownName

__all__ = ["ENGINES", "find_engine"]

ENGINES = {"dash": "takeup.streaming.engines.dash:DashEngine"}


def find_engine(name: str) -> type:
    """The class of the engine of this name."""
    if name not in ENGINES:
        raise UnknownName("streaming engine", name, ENGINES)
    module, _, attribute = ENGINES[name].partition(":")
    engine = getattr(import_module(module), attribute)
    assert isinstance(engine, type)
    return engine
