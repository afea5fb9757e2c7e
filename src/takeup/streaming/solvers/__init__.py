"""Solvers by name. To add one: a file here, a line in SOLVERS, a test, a row in the domain's README."""

from takeup.errors import UnknownName
from takeup.streaming.solvers.diffusion import DiffusionSolver
from takeup.streaming.solvers.fluid import DoublingSolver
from takeup.streaming.solvers.solution import ChainSolver
from takeup.streaming.solvers.sparse import SparseSolver

SOLVERS: dict[str, ChainSolver] = {
    "doubling": DoublingSolver(),
    "diffusion": DiffusionSolver(),
    "sparse": SparseSolver(),
}


def find_solver(name: str) -> ChainSolver:
    """The solver of this name."""
    if name not in SOLVERS:
        raise UnknownName("streaming solver", name, SOLVERS)
    return SOLVERS[name]
