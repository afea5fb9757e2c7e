"""Solvers and what is built on them. `POLICIES` has all solvers by name; see `solvers`.

Names are loaded on first use, so that a command pays only for the solver it needs.
"""

from takeup.core.lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
