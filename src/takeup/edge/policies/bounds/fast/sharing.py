"""The best groups for given devices with given windows: the least energy for every set of subcarriers they may use."""

from __future__ import annotations

import numpy as np

from takeup.core.arrays import Floats, Ints
from takeup.core.compiled import inner, kernel
from takeup.edge.policies.bounds.fast.groups import GroupCosts, group_cost


@inner
def add_device_costs(
    groups: GroupCosts, device: int, window_s: float, before_j: Floats, used: Ints, after_j: Floats
) -> None:
    """The least energies by mask with one more device, from those without it at the masks that are in use.

    A group is left out if it costs no less without its worst subcarrier, which then has no power.
    """
    after_j[:] = np.inf
    num_ranks = groups.ranked.shape[1]
    costs_j = np.full(len(after_j), np.inf)
    for mask in range(1, len(after_j)):
        cost_j = group_cost(groups, device, mask, window_s)
        costs_j[mask] = cost_j
        if cost_j == np.inf:
            continue
        rank = num_ranks - 1
        while not mask & groups.ranked[device, rank]:
            rank -= 1
        without = mask ^ groups.ranked[device, rank]
        if costs_j[without] <= cost_j:
            continue
        for other in used:
            if not other & mask and before_j[other] + cost_j < after_j[other | mask]:
                after_j[other | mask] = before_j[other] + cost_j


@kernel
def share_subcarriers(groups: GroupCosts, devices: Ints, windows_s: Floats) -> Ints:
    """The masks with which these devices spend least together; zeros if they cannot all upload in their windows."""
    num_masks = groups.shortest_s.shape[1]
    costs_j = np.full((len(devices) + 1, num_masks), np.inf)
    costs_j[0, 0] = 0.0
    masks = np.zeros(len(devices), np.int64)
    for row in range(len(devices)):
        used = np.flatnonzero(costs_j[row] < np.inf)
        add_device_costs(groups, devices[row], windows_s[row], costs_j[row], used, costs_j[row + 1])
    rest = int(np.argmin(costs_j[-1]))
    if costs_j[-1, rest] == np.inf:
        return masks
    for row in range(len(devices) - 1, -1, -1):
        best_j = np.inf
        mask = rest
        while mask > 0:  # every part of the rest
            cost_j = group_cost(groups, devices[row], mask, windows_s[row]) + costs_j[row, rest ^ mask]
            if cost_j < best_j:
                masks[row], best_j = mask, cost_j
            mask = (mask - 1) & rest
        rest ^= masks[row]
    return masks
