"""What no allocation can exceed: an easier problem, solved by an integer program.

How it works. A device that offloads with k subcarriers saves at most what its k best ones would save if the CPU waited
until its deadline allows no more. So let everyone choose k, count subcarriers without asking which, and ask of the m
cores only that between a moment r and a deadline d no more is run than m (d - r), among the tasks that cannot be
uploaded before r and are due by d. Every real allocation is a solution of this; the best one saves at least as much as
any of them.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import csr_array, vstack

from takeup.edge.energy import PrefixGroups
from takeup.edge.model import Instance

__all__ = ["MOST_CHOICES", "Relaxed", "relax", "saving_bound"]

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

MOST_CHOICES = 5_000  # of device and group size; beyond, the program takes too long
MOST_NODES = 1_000
MOMENTS = (0.0, 0.25, 0.5, 0.75)  # quantiles of the earliest ends of uploads


class Relaxed(NamedTuple):
    """The solution of the easier problem: what it saves, and who offloads in it."""

    bound_j: float
    devices: Ints


def saving_bound(instance: Instance) -> float | None:
    """At least what the best allocation saves, in joules; None if the instance is too large."""
    relaxed = relax(instance)
    return None if relaxed is None else relaxed.bound_j


def relax(instance: Instance) -> Relaxed | None:
    """The easier problem solved; None if the instance is too large."""
    ranked = -np.sort(-instance.gain_to_noise, axis=1)
    table = PrefixGroups(ranked, instance.bits, instance.radio)
    costs_j = table.prefixes(instance.deadlines_s - instance.run_s - instance.releases_s).energy_j
    savings_j = instance.worth_j[:, None] - costs_j
    devices, sizes = np.nonzero(savings_j > 0)
    if len(devices) == 0:
        return Relaxed(0.0, devices)
    if len(devices) > MOST_CHOICES:
        return None
    constraint = _constraint(
        instance, devices, sizes + 1, instance.releases_s[devices] + table.shortest_s[devices, sizes]
    )
    return _solve(devices, savings_j[devices, sizes], constraint)


def _solve(devices: Ints, worth_j: Floats, constraint: LinearConstraint) -> Relaxed | None:
    scale_j = float(worth_j.max())
    options = {"node_limit": MOST_NODES, "mip_rel_gap": 1e-6}
    found = milp(-worth_j / scale_j, integrality=1, bounds=Bounds(0, 1), constraints=constraint, options=options)
    if found.mip_dual_bound is None:
        return None
    chosen = np.zeros(0, np.int64) if found.x is None else devices[found.x > 0.5]
    return Relaxed(-float(found.mip_dual_bound) * scale_j, chosen)


def _constraint(instance: Instance, devices: Ints, sizes: Ints, uploaded_s: Floats) -> LinearConstraint:
    """One size to a device, so many subcarriers, so much CPU time; every right side is one."""
    count = len(devices)
    once = csr_array((np.ones(count), (devices, np.arange(count))), shape=(instance.num_devices, count))
    radio = csr_array((sizes / instance.num_subcarriers)[None, :])
    rows = vstack([once, radio, csr_array(_cpu_rows(instance, devices, uploaded_s))])
    return LinearConstraint(rows, -np.inf, 1.0)


def _cpu_rows(instance: Instance, devices: Ints, uploaded_s: Floats) -> Floats:
    """For every moment and deadline, the share of the time between them that each choice takes."""
    moments_s = np.unique(np.quantile(uploaded_s, MOMENTS, method="lower"))[:, None, None]
    due_s = np.unique(instance.deadlines_s[devices])[None, :, None]
    inside = (uploaded_s >= moments_s) & (instance.deadlines_s[devices] <= due_s)
    room_s = np.where(due_s > moments_s, instance.num_cores * (due_s - moments_s), np.inf)
    return np.where(inside, instance.run_s[devices] / room_s, 0.0).reshape(-1, len(devices))
