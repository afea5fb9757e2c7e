"""Master problem of the column generation: a mix of columns (device, group, start) within every resource limit.

Its dual values are prices. They give a bound at any time, not only at the end: no device can gain more than its best
profit at these prices, and the resources are worth their price at most (see `generate`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, linprog, milp
from scipy.sparse import csc_array

from takeup.core.arrays import Bools, Floats, Ints
from takeup.core.native_output import native_output_to_stderr
from takeup.edge.model import Instance


@dataclass(frozen=True, slots=True)
class SlotGrid:
    """Slots of CPU time: where they begin and end."""

    edges_s: Floats
    num_cores: int

    @property
    def capacity_s(self) -> Floats:
        """The CPU time in every slot."""
        return self.num_cores * np.diff(self.edges_s)

    def usage(self, start_s: Floats, run_s: Floats) -> Floats:
        """The share of every slot that runs take, one row for each."""
        ends_s = (start_s + run_s)[:, None]
        inside_s = np.minimum(ends_s, self.edges_s[1:]) - np.maximum(start_s[:, None], self.edges_s[:-1])
        shares: Floats = np.maximum(0.0, inside_s) / self.capacity_s
        return shares


def slot_grid(instance: Instance, num_slots: int) -> SlotGrid:
    """Equal slots from the first release to the last deadline."""
    first_s, last_s = float(instance.releases_s.min()), float(instance.deadlines_s.max())
    return SlotGrid(np.linspace(first_s, last_s, num_slots + 1), instance.num_cores)


class ColumnSet(NamedTuple):
    """Devices with a group and a start each, and what they are worth at most."""

    device: Ints
    members: Bools
    start_s: Floats
    value_j: Floats

    def joined(self, others: ColumnSet) -> ColumnSet:
        """Both together."""
        return concatenate_columns([self, others])

    def only(self, rows: Ints | Bools) -> ColumnSet:
        """Some of them."""
        return ColumnSet(self.device[rows], self.members[rows], self.start_s[rows], self.value_j[rows])


def concatenate_columns(parts: list[ColumnSet]) -> ColumnSet:
    """The columns of several lists in one."""
    return ColumnSet(
        np.concatenate([part.device for part in parts]),
        np.concatenate([part.members for part in parts]),
        np.concatenate([part.start_s for part in parts]),
        np.concatenate([part.value_j for part in parts]),
    )


class Duals(NamedTuple):
    """Prices in joules: of every subcarrier, and of all CPU time of every slot."""

    subcarriers_j: Floats
    slots_j: Floats


class MasterSolution(NamedTuple):
    """The best mix: what it is worth, how much of every column it has, and the prices of the resources."""

    value_j: float
    shares: Floats
    duals: Duals


def solve_master(instance: Instance, grid: SlotGrid, columns: ColumnSet) -> MasterSolution:
    """The best mix of fractions of columns."""
    rows, scale_j = _rows(instance, grid, columns), float(columns.value_j.max())
    with native_output_to_stderr():
        found = linprog(-columns.value_j / scale_j, A_ub=rows, b_ub=np.ones(rows.shape[0]), method="highs")
    prices_j = np.maximum(0.0, -found.ineqlin.marginals) * scale_j
    first, second = instance.num_devices, instance.num_devices + instance.num_subcarriers
    return MasterSolution(-float(found.fun) * scale_j, found.x, Duals(prices_j[first:second], prices_j[second:]))


def solve_integer_master(instance: Instance, grid: SlotGrid, columns: ColumnSet, most_nodes: int) -> Ints:
    """The best mix of whole columns, as their numbers."""
    rows, scale_j = _rows(instance, grid, columns), float(columns.value_j.max())
    options = {"node_limit": most_nodes, "mip_rel_gap": 1e-4}
    constraint = LinearConstraint(rows, -np.inf, 1.0)
    with native_output_to_stderr():
        found = milp(
            -columns.value_j / scale_j, integrality=1, bounds=Bounds(0, 1), constraints=constraint, options=options
        )
    return np.zeros(0, np.int64) if found.x is None else np.flatnonzero(found.x > 0.5)


def _rows(instance: Instance, grid: SlotGrid, columns: ColumnSet) -> csc_array:
    """One row for each device, subcarrier and slot: what a column takes of it; there is one of each."""
    alone = np.zeros((len(columns.device), instance.num_devices))
    alone[np.arange(len(columns.device)), columns.device] = 1.0
    usage = grid.usage(columns.start_s, instance.run_s[columns.device])
    return csc_array(np.hstack([alone, columns.members, usage]).T)
