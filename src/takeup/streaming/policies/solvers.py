"""All solvers by name. To add one: a file here, a line below, a test, a row in the domain's README.

`FixedLengthSolver` and `BufferAbrSolver` are solvers too; they need a length or a ladder, so they are made where used.
"""

from __future__ import annotations

from takeup.errors import UnknownName
from takeup.streaming.policies.diffusion import DiffusionSolver
from takeup.streaming.policies.doubling import DoublingSolver
from takeup.streaming.policies.riccati import RiccatiSolver

ChainSolver = RiccatiSolver | DoublingSolver | DiffusionSolver

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
