"""An upper bound on any allocation: a relaxation (see `bounds.choices`), solved as an integer program."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp

from takeup.core.arrays import Ints
from takeup.core.native_output import native_output_to_stderr
from takeup.edge.model import Instance
from takeup.edge.policies.bounds.choices import SizeChoices, choice_constraints, quantile_moments, size_choices

MOST_CHOICES = 5_000  # of device and group size; beyond, the program takes too long
MOST_NODES = 1_000


class RelaxedSolution(NamedTuple):
    """The solution of the relaxation: its worth, and the devices that offload in it."""

    bound_j: float
    devices: Ints


def saving_bound(instance: Instance) -> float | None:
    """At least what the best allocation is worth, in joules; None if the instance is too large."""
    relaxed = relax(instance)
    return None if relaxed is None else relaxed.bound_j


def relax(instance: Instance, most_nodes: int = MOST_NODES) -> RelaxedSolution | None:
    """Solve the relaxation; None if the instance is too large."""
    choices = size_choices(instance, np.arange(instance.num_devices))
    if len(choices.device) == 0:
        return RelaxedSolution(0.0, choices.device)
    return None if len(choices.device) > MOST_CHOICES else _solve(instance, choices, most_nodes)


def _solve(instance: Instance, choices: SizeChoices, most_nodes: int) -> RelaxedSolution | None:
    scale_j = float(choices.value_j.max())
    options = {"node_limit": most_nodes, "mip_rel_gap": 1e-6}
    rules = LinearConstraint(choice_constraints(instance, choices, quantile_moments(choices)).rows, -np.inf, 1.0)
    with native_output_to_stderr():
        found = milp(-choices.value_j / scale_j, integrality=1, bounds=Bounds(0, 1), constraints=rules, options=options)
    if found.mip_dual_bound is None:
        return None
    chosen = np.zeros(0, np.int64) if found.x is None else choices.device[found.x > 0.5]
    return RelaxedSolution(-float(found.mip_dual_bound) * scale_j, chosen)
