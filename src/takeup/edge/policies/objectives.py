"""What to make large: the energy saved, the number of devices served and then the energy, or values given by the user.

Policies know one aim, saving plus values. So an objective is a choice of values: none for energy; for the count, as
much for each device as no energy can outweigh.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import numpy as np

from takeup.edge.model import Instance
from takeup.errors import UnknownName

Objective = Literal["energy", "count", "value"]
OBJECTIVES: tuple[Objective, ...] = ("energy", "count", "value")


def with_objective(instance: Instance, objective: str) -> Instance:
    """The same devices, with the values that make policies pursue this objective."""
    if objective not in OBJECTIVES:
        raise UnknownName("edge objective", objective, OBJECTIVES)
    if objective == "value":
        return instance
    each_j = _all_energy_j(instance) if objective == "count" else 0.0
    return replace(instance, values_j=np.full(instance.num_devices, each_j))


def _all_energy_j(instance: Instance) -> float:
    """More than all devices together can spend, locally and on uploads."""
    most_w = instance.radio.circuit_power_w + instance.radio.max_power_w
    uploads_j = most_w * (instance.deadlines_s - instance.releases_s)
    return float((instance.local_j + uploads_j).sum())
