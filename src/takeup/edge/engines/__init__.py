"""Real engines by name. Each is imported on first use, and its error names the dependency that is missing."""

from takeup.core.lazy import find

ENGINES = {"cloudlet": "takeup.edge.engines.cloudlet.engine:CloudletEngine"}


def find_engine(name: str) -> type:
    """The class of the engine of this name."""
    engine = find("edge engine", name, ENGINES)
    assert isinstance(engine, type)
    return engine
