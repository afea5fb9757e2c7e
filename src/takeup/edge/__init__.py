"""Edge: who offloads its task, over which subcarriers, and when the CPU of the site serves whom.

Public names are loaded on first use, so that importing this package costs nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from takeup.core.lazy import lazy_names

if TYPE_CHECKING:
    from takeup.edge.contract import Policy
    from takeup.edge.energy import PrefixGroups
    from takeup.edge.model import Allocation, Answer, Decision, Instance, Modulation, Prices, Radio, Reason
    from takeup.edge.policies import POLICIES, find_policy
    from takeup.edge.policies.bound import saving_bound
    from takeup.edge.traces import SETTINGS, generate
    from takeup.edge.validate import Violation, first_violation

__all__ = [
    "POLICIES",
    "SETTINGS",
    "Allocation",
    "Answer",
    "Decision",
    "Instance",
    "Modulation",
    "Policy",
    "PrefixGroups",
    "Prices",
    "Radio",
    "Reason",
    "Violation",
    "find_policy",
    "first_violation",
    "generate",
    "saving_bound",
]

_HOMES = {
    "model": ("Allocation", "Answer", "Decision", "Instance", "Modulation", "Prices", "Radio", "Reason"),
    "energy": ("PrefixGroups",),
    "contract": ("Policy",),
    "validate": ("Violation", "first_violation"),
    "policies": ("POLICIES", "find_policy"),
    "policies.bound": ("saving_bound",),
    "traces": ("SETTINGS", "generate"),
}

__getattr__, __dir__ = lazy_names(__name__, _HOMES)
