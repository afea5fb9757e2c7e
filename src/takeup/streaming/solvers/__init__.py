"""Solvers by name. To add one: a file here, a line in SOLVERS, a test, a row in the domain's README."""

from takeup.errors import UnknownName
from takeup.streaming.solvers.diffusion import DiffusionSolver
from takeup.streaming.solvers.fluid import DoublingSolver, RiccatiSolver
from takeup.streaming.solvers.solution import ChainSolver

SOLVERS: dict[str, ChainSolver] = {
    "riccati": RiccatiSolver(),
    "doubling": DoublingSolver(),
    "diffusion": DiffusionSolver(),
}


def find_solver(name: str) -> ChainSolver:
    """The solver of this name."""
    if name not in SOLVERS:
        raise UnknownName("streaming solver", name, SOLVERS)
    return SOLVERS[name]
