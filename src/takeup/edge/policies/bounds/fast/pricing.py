"""The best use of the site for every device at given prices, where groups can be listed.

How it works. Subcarriers have a price each, CPU time one that changes from slot to slot; `omega[slot]` is what all CPU
time before a slot costs. For a start somewhere in a slot, the upload may last until the end of the slot, and the run
costs what it costs at the cheapest moment of the slot: so no real start does better. The price of a run is straight
between the moments at which its end crosses into another slot, hence least at one of them or at an end of the slot.
"""

from __future__ import annotations

import numpy as np

from takeup.core.arrays import Floats, Ints
from takeup.core.compiled import inner, kernel


@inner
def price_before(edges_s: Floats, omega: Floats, moment_s: float) -> float:
    """What the CPU time of one core before a moment costs."""
    if moment_s <= edges_s[0]:
        return 0.0
    slot = min(int(np.searchsorted(edges_s, moment_s)), len(edges_s) - 1)
    share = min(1.0, (moment_s - edges_s[slot - 1]) / (edges_s[slot] - edges_s[slot - 1]))
    return float(omega[slot - 1] + share * (omega[slot] - omega[slot - 1]))


@kernel
def cheapest_starts(edges_s: Floats, omega: Floats, earliest_s: Floats, latest_s: Floats, run_s: Floats) -> Floats:
    """For every device and slot, the start at which its run is cheapest, and that price; nan where it cannot start."""
    found = np.full((len(run_s), len(edges_s) - 1, 2), np.nan)
    for device in range(len(run_s)):
        for slot in range(len(edges_s) - 1):
            low_s = max(edges_s[slot], earliest_s[device])
            high_s = min(edges_s[slot + 1], latest_s[device])
            if not low_s <= high_s:
                continue
            best_s, best = low_s, np.inf
            first = np.searchsorted(edges_s, low_s + run_s[device])
            for edge in range(first - 1, len(edges_s)):
                start_s = min(high_s, max(low_s, edges_s[max(edge, 0)] - run_s[device]))
                price = price_before(edges_s, omega, start_s + run_s[device]) - price_before(edges_s, omega, start_s)
                if price < best:
                    best_s, best = start_s, price
                if start_s == high_s:
                    break
            price = price_before(edges_s, omega, high_s + run_s[device]) - price_before(edges_s, omega, high_s)
            if price <= best:
                best_s, best = high_s, price
            found[device, slot, 0], found[device, slot, 1] = best_s, best
    return found


@kernel
def best_listed(values_j: Floats, prices_j: Floats) -> tuple[Ints, Floats]:
    """For every device and slot, the group whose value exceeds its price by most, and by how much.

    `values_j` is by device, slot and group, prices are by group.
    """
    groups = np.zeros(values_j.shape[:2], np.int64)
    profits_j = np.full(values_j.shape[:2], -np.inf)
    for device in range(values_j.shape[0]):
        for slot in range(values_j.shape[1]):
            for group in range(values_j.shape[2]):
                profit_j = values_j[device, slot, group] - prices_j[group]
                if profit_j > profits_j[device, slot]:
                    groups[device, slot], profits_j[device, slot] = group, profit_j
    return groups, profits_j
