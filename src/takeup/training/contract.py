"""The seam of training: a planner is asked for the schedule of a pipeline, and answers with a plan. Open this first.

A planner is pure: the same profile gives the same plan, bit for bit, so every rank may compute it for itself. Nobody
has to trust it: a `Schedule` is checked when it is made, and `simulate` or an engine finds out what it really takes.
"""

from __future__ import annotations

from typing import Protocol

from takeup.training.model import Plan, Profile

__all__ = ["Planner"]


class Planner(Protocol):
    """Decides what every rank computes, in which order."""

    @property
    def name(self) -> str:
        """What reports call it."""

    def plan(self, profile: Profile) -> Plan:
        """The schedule for this pipeline, with what it is expected to take and why."""
