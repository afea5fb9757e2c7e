"""Local: every device runs its own task. The baseline of all other policies."""

from dataclasses import dataclass

import numpy as np

from takeup.edge.model import Answer, Instance, Reason
from takeup.edge.solvers.partial_plan import PartialPlan, SiteQuantities


@dataclass(frozen=True, slots=True)
class Local:
    """Offload no device."""

    name: str = "local"
    ignores_cpu: bool = False

    def allocate(self, instance: Instance) -> Answer:
        """The allocation without offloading, which is always feasible."""
        return PartialPlan(SiteQuantities(instance)).answer(
            self.name, np.full(instance.num_devices, np.int8(Reason.NOT_CONSIDERED))
        )
