"""Streaming: how long viewers wait and how often playback stops, when videos share a cell.

Public names are loaded on first use, so that importing this package costs nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from takeup.core.lazy import lazy_names

if TYPE_CHECKING:
    from takeup.streaming.chains import chain_of
    from takeup.streaming.contract import Engine, Solver
    from takeup.streaming.model import Answer, Capacity, Cell, Chain, Estimate, Player, Views
    from takeup.streaming.policies import POLICIES, find_solver
    from takeup.streaming.policies.capacity_fit import fit_capacity
    from takeup.streaming.policies.whole_cell import solve_cell
    from takeup.streaming.traces import ThroughputLog, read_log

__all__ = [
    "POLICIES",
    "Answer",
    "Capacity",
    "Cell",
    "Chain",
    "Engine",
    "Estimate",
    "Player",
    "Solver",
    "ThroughputLog",
    "Views",
    "chain_of",
    "find_solver",
    "fit_capacity",
    "read_log",
    "solve_cell",
]

_HOMES = {
    "model": ("Answer", "Capacity", "Cell", "Chain", "Estimate", "Player", "Views"),
    "chains": ("chain_of",),
    "contract": ("Engine", "Solver"),
    "policies": ("POLICIES", "find_solver"),
    "policies.capacity_fit": ("fit_capacity",),
    "policies.whole_cell": ("solve_cell",),
    "traces": ("ThroughputLog", "read_log"),
}

__getattr__, __dir__ = lazy_names(__name__, _HOMES)
