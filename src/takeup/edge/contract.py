"""The policy interface of edge: one call per instance, which returns an allocation. Read this first.

A policy is pure: the same instance gives the same answer. It need not be trusted: `validate.first_violation` checks
every constraint again with independent code, and an engine can execute the allocation and measure the result.
"""

from typing import Protocol

from takeup.edge.model import Answer, Instance


class Policy(Protocol):
    """Decides which devices offload, over which subcarriers, and when the CPU runs each task."""

    @property
    def name(self) -> str:
        """The name shown in reports."""

    @property
    def ignores_cpu(self) -> bool:
        """Whether its tasks may overlap on the CPU; such a policy is only a reference."""

    def allocate(self, instance: Instance) -> Answer:
        """Compute the allocation, its saving, and the reason for each device's decision."""
