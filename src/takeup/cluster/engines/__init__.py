"""Real engines by name. Each is imported only when it is asked for, and says what it needs when that is missing."""

from takeup.core.lazy import find

ENGINES = {
    "kubernetes": "takeup.cluster.engines.kubernetes:KubernetesEngine",
    "slurm": "takeup.cluster.engines.slurm:SlurmEngine",
}


def find_engine(name: str) -> type:
    """The class of the engine of this name."""
    engine = find("cluster engine", name, ENGINES)
    assert isinstance(engine, type)
    return engine
