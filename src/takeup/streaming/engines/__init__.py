"""Real engines by name. Each is imported on first use, and its error names the dependency that is missing."""

from takeup.core.lazy import find
from takeup.streaming.contract import StreamingEngine

ENGINES = {"dash": "takeup.streaming.engines.dash.engine:DashEngine"}


def find_engine(name: str) -> type[StreamingEngine]:
    """The class of the engine of this name."""
    engine: type[StreamingEngine] = find("streaming engine", name, ENGINES)
    return engine
