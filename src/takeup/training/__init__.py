"""Training: pipeline schedules that hide slow links, and straggler detection.

Public names are imported lazily, so importing this package is cheap.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from takeup.core.lazy import lazy_names

if TYPE_CHECKING:
    from takeup.training.contract import Planner
    from takeup.training.model import Kind, Link, Op, Plan, Profile, Schedule, Span, Stage, Timeline
    from takeup.training.policies import POLICIES, find_policy
    from takeup.training.timing import least_iteration_s, timeline_of
    from takeup.training.traces import (
        load_profile,
        load_schedule,
        random_profile,
        save_profile,
        save_schedule,
    )

__all__ = [
    "POLICIES",
    "Kind",
    "Link",
    "Op",
    "Plan",
    "Planner",
    "Profile",
    "Schedule",
    "Span",
    "Stage",
    "Timeline",
    "find_policy",
    "least_iteration_s",
    "load_profile",
    "load_schedule",
    "random_profile",
    "save_profile",
    "save_schedule",
    "timeline_of",
]

_HOMES = {
    "model": ("Kind", "Link", "Op", "Plan", "Profile", "Schedule", "Span", "Stage", "Timeline"),
    "contract": ("Planner",),
    "policies": ("POLICIES", "find_policy"),
    "timing": ("least_iteration_s", "timeline_of"),
    "traces": ("load_profile", "load_schedule", "random_profile", "save_profile", "save_schedule"),
}

__getattr__, __dir__ = lazy_names(__name__, _HOMES)
