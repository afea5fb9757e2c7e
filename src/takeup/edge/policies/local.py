"""Local: every device runs its own task. What all others are measured against."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from takeup.edge.model import Answer, Instance, Reason
from takeup.edge.policies.plan import Plan, Site

__all__ = ["Local"]


@dataclass(frozen=True, slots=True)
class Local:
    """Offload nobody."""

    name: str = "local"
    ignores_cpu: bool = False

    def allocate(self, instance: Instance) -> Answer:
        """The allocation that is always possible."""
        return Plan(Site(instance)).answer(self.name, np.full(instance.num_devices, np.int8(Reason.NOT_CONSIDERED)))
