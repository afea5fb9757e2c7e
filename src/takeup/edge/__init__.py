"""Edge offloading: which devices offload, over which subcarriers, and when the CPU of the site runs each task.

Public names are loaded on first use, so that importing this package costs nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from takeup.core.lazy import lazy_names

if TYPE_CHECKING:
    from takeup.edge.contract import Policy
    from takeup.edge.energy import PrefixGroups
    from takeup.edge.model import Allocation, Answer, Decision, Instance, Modulation, Prices, Radio, Reason
    from takeup.edge.played import Played, PlayedTask
    from takeup.edge.policies import POLICIES, find_policy
    from takeup.edge.policies.batch import BatchAnswer, joint_batch
    from takeup.edge.policies.objectives import with_objective
    from takeup.edge.served import Served, ServedTask
    from takeup.edge.simulate import Uncertainty
    from takeup.edge.solver import solve
    from takeup.edge.traces import SETTINGS, generate, load_instance, save_instance
    from takeup.edge.validate import Violation, first_violation

__all__ = [
    "POLICIES",
    "SETTINGS",
    "Allocation",
    "Answer",
    "BatchAnswer",
    "Decision",
    "Instance",
    "Modulation",
    "Played",
    "PlayedTask",
    "Policy",
    "PrefixGroups",
    "Prices",
    "Radio",
    "Reason",
    "Served",
    "ServedTask",
    "Uncertainty",
    "Violation",
    "find_policy",
    "first_violation",
    "generate",
    "joint_batch",
    "load_instance",
    "save_instance",
    "solve",
    "with_objective",
]

_HOMES = {
    "model": ("Allocation", "Answer", "Decision", "Instance", "Modulation", "Prices", "Radio", "Reason"),
    "energy": ("PrefixGroups",),
    "contract": ("Policy",),
    "validate": ("Violation", "first_violation"),
    "policies": ("POLICIES", "find_policy"),
    "played": ("Played", "PlayedTask"),
    "policies.batch": ("BatchAnswer", "joint_batch"),
    "policies.objectives": ("with_objective",),
    "served": ("Served", "ServedTask"),
    "simulate": ("Uncertainty",),
    "solver": ("solve",),
    "traces": ("SETTINGS", "generate", "load_instance", "save_instance"),
}

__getattr__, __dir__ = lazy_names(__name__, _HOMES)
