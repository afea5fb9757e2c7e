"""What every group of a small number of subcarriers costs, as tables and as a function of the time there is.

A group is known by its number; bit j of its mask stands for subcarrier j. `ranked` has the bits of the subcarriers of a
device from the best on, `logs` and `inverse` their ratios to noise in the same order.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from takeup.core.arrays import Floats, Ints
from takeup.core.compiled import inner, kernel


class GroupCosts(NamedTuple):
    """For every device and group: the shortest upload, the cheapest one, and what that one costs.

    Where uploads use modulations, `step_s` and `step_j` list their times, rising, and their energies, falling; the
    last axis is empty otherwise. A group that is not allowed has a shortest upload of inf.
    """

    masks: Ints
    ranked: Ints
    logs: Floats
    inverse: Floats
    bits_per_hz: Floats
    circuit_power_w: float
    shortest_s: Floats
    cheapest_s: Floats
    least_j: Floats
    step_s: Floats
    step_j: Floats


@inner
def group_cost(groups: GroupCosts, device: int, group: int, window_s: float) -> float:
    """The least energy of an upload over the group within the window, in joules; inf if there is none."""
    if not groups.shortest_s[device, group] <= window_s:
        return np.inf
    if window_s >= groups.cheapest_s[device, group]:
        return float(groups.least_j[device, group])
    if groups.step_s.shape[2] > 0:
        step = np.searchsorted(groups.step_s[device, group], window_s, side="right")
        return float(groups.step_j[device, group, step - 1])
    need = groups.bits_per_hz[device] / window_s
    sum_logs, sum_inverse, num_on = 0.0, 0.0, 0
    for rank in range(groups.ranked.shape[1]):
        if groups.masks[group] & groups.ranked[device, rank]:
            log = groups.logs[device, rank]
            if need < sum_logs - num_on * log:
                break
            sum_logs += log
            sum_inverse += groups.inverse[device, rank]
            num_on += 1
    power_w = max(0.0, num_on * np.exp2((need - sum_logs) / num_on) - sum_inverse)
    return float(window_s * (groups.circuit_power_w + power_w))


@kernel
def group_costs(groups: GroupCosts, windows_s: Floats) -> Floats:
    """The same for every device, column of its row of windows, and group."""
    costs_j = np.empty((*windows_s.shape, groups.shortest_s.shape[1]))
    for device in range(windows_s.shape[0]):
        for column in range(windows_s.shape[1]):
            for group in range(costs_j.shape[2]):
                costs_j[device, column, group] = group_cost(groups, device, group, windows_s[device, column])
    return costs_j
