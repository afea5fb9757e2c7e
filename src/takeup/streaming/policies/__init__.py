"""Solvers and what is built on them. `POLICIES` has all solvers by name; see `solvers`.

Names are loaded on first use, so that a command pays only for the solver it needs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from takeup.core.lazy import lazy_names

if TYPE_CHECKING:
    from takeup.streaming.policies.solvers import POLICIES, ChainSolver, find_solver

__all__ = ["POLICIES", "ChainSolver", "find_solver"]

__getattr__, __dir__ = lazy_names(__name__, {"solvers": ("POLICIES", "ChainSolver", "find_solver")})
