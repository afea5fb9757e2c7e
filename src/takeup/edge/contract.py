"""The seam of edge: a policy is asked once for a whole instance, and answers with an allocation. Open this first.

A policy is pure: the same instance gives the same answer. Nobody has to trust it: `validate.first_violation` checks
every constraint again, by other code, and an engine that plays the allocation finds out what really happens.
"""

from __future__ import annotations

from typing import Protocol

from takeup.edge.model import Answer, Instance

__all__ = ["Policy"]


class Policy(Protocol):
    """Decides who offloads, over which subcarriers, and when the CPU serves whom."""

    @property
    def name(self) -> str:
        """What reports call it."""

    @property
    def ignores_cpu(self) -> bool:
        """Whether its tasks may overlap on the CPU: then it is a reference, and not a contender."""

    def allocate(self, instance: Instance) -> Answer:
        """The allocation for these devices, with what it saves and a reason for each of them."""
