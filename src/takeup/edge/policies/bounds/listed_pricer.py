"""The best columns where all groups can be listed: what each is worth in each slot is computed once."""

from __future__ import annotations

import numpy as np

from takeup.core.arrays import Ints
from takeup.edge.model import Instance
from takeup.edge.policies.bounds.fast.groups import GroupCosts, group_costs
from takeup.edge.policies.bounds.fast.pricing import best_listed, cheapest_starts
from takeup.edge.policies.bounds.generate import ColumnOffers
from takeup.edge.policies.bounds.master import ColumnSet, Duals, SlotGrid


class ListedPricer:
    """Looks at every group."""

    def __init__(self, instance: Instance, groups: GroupCosts, grid: SlotGrid) -> None:
        self._instance, self._grid = instance, grid
        self._latest_s = instance.deadlines_s - instance.run_s
        limits_s = np.minimum(grid.edges_s[None, 1:], self._latest_s[:, None])
        costs_j = group_costs(groups, limits_s - instance.releases_s[:, None])
        self._values_j = instance.worth_j[:, None, None] - costs_j
        self._earliest_s = instance.releases_s + groups.shortest_s.min(axis=1)
        self._members = (groups.masks[:, None] >> np.arange(instance.num_subcarriers)) & 1 == 1
        self._groups = np.zeros((0, 0), np.int64)
        self._starts_s = np.zeros((0, 0))

    def offers(self, duals: Duals) -> ColumnOffers:
        """How much every device gains at most in every slot; -inf where it cannot start."""
        omega = np.concatenate([[0.0], np.cumsum(duals.slots_j)]) / self._grid.num_cores
        found = cheapest_starts(self._grid.edges_s, omega, self._earliest_s, self._latest_s, self._instance.run_s)
        self._starts_s = found[:, :, 0]
        self._groups, profits_j = best_listed(self._values_j, self._members @ duals.subcarriers_j)
        return ColumnOffers(np.where(np.isnan(self._starts_s), -np.inf, profits_j - found[:, :, 1]), self._starts_s)

    def columns(self, devices: Ints, slots: Ints) -> ColumnSet:
        """Some of the columns behind the latest offers."""
        groups = self._groups[devices, slots]
        values_j = self._values_j[devices, slots, groups]
        return ColumnSet(devices, self._members[groups], self._starts_s[devices, slots], values_j)
