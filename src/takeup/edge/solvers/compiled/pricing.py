"""Pricing kernels: what groups cost, and the best column of every device at given prices."""

from typing import NamedTuple

import numpy as np

from takeup.core.arrays import Bools, Floats, Ints
from takeup.core.compiled import inner, kernel

# What every group of a small number of subcarriers costs, as tables and as a function of the time there is ------------
#
# A group is known by its number; bit j of its mask stands for subcarrier j. `ranked` has the bits of the subcarriers
# of a device from the best on, `logs` and `inverse` their ratios to noise in the same order.


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


# The best use of the site for every device at given prices, where groups can be listed --------------------------------
#
# How it works. Subcarriers have a price each, CPU time one that changes from slot to slot; `omega[slot]` is what all
# CPU time before a slot costs. For a start somewhere in a slot, the upload may last until the end of the slot, and the
# run costs what it costs at the cheapest moment of the slot: so no real start does better. The price of a run is
# straight between the moments at which its end crosses into another slot, hence least at one of them or at an end of
# the slot.


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
def best_listed(values_j: Floats, prices_j: Floats, groups: Ints) -> Floats:
    """For every device and slot, by how much the value of a group exceeds its price at most; `groups` gets which.

    `values_j` is by device, slot and group, prices are by group.
    """
    profits_j = np.full(values_j.shape[:2], -np.inf)
    for device in range(values_j.shape[0]):
        for slot in range(values_j.shape[1]):
            for group in range(values_j.shape[2]):
                profit_j = values_j[device, slot, group] - prices_j[group]
                if profit_j > profits_j[device, slot]:
                    groups[device, slot], profits_j[device, slot] = group, profit_j
    return profits_j


# The best group of a device at given prices, where there are too many groups to list: bounds by duality ---------------
#
# How it works. For an upload of t seconds over subcarriers S, with ratios g and prices p of subcarriers, and any water
# level a and price r of power, the least cost of energy and subcarriers is at least
#
#     (1 + r) a K + t (circuit - r most) + sum over S of (p - (1 + r) t f(a)),    K = ln 2 * bits / B,
#     f(a) = a ln(a g) - a + 1/g   where a g > 1,   otherwise 0,
#
# so for groups of n or more at least that with the n smallest terms of all subcarriers and all that are below zero. It
# is a concave function of t, hence least at an end of any span of t. The best level is about the one at which these
# subcarriers together carry the bits by the end of the span; a price of power matters where they would need more power
# than there is. Any level and price give a bound, so both are kept for the next prices, which are near these.
#
# Subcarriers are looked at from the best on. f falls with g, so all terms after one with (1 + r) t f(a) below the least
# price are positive.

NUM_STEPS = 12  # of Newton's method for the level
CLOSE_LEVEL = 1e-3
POWER_PRICES = np.append(0.0, 0.25 * 2.0 ** np.arange(14))


class Uplink(NamedTuple):
    """What uploads depend on: logarithms and inverse ratios by device and rank, bits, powers.

    `order[device, rank]` is a subcarrier; `shortest_s[device, n - 1]` is the shortest upload over the n best ones. A
    row of `spans_s` has the ends of the spans of time, rising, one more than `num_spans`. `prices` are those of the
    subcarriers. `levels` and `rungs` are the last water levels and indices in `POWER_PRICES`, and are updated.
    """

    order: Ints
    logs: Floats
    inverse: Floats
    shortest_s: Floats
    need: Floats
    worth_j: Floats
    max_power_w: float
    circuit_power_w: float
    spans_s: Floats
    num_spans: Ints
    prices: Floats
    levels: Floats
    rungs: Ints


@kernel
def best_wide(link: Uplink, size: int, members: Bools) -> Floats:
    """For every device and span, what energy and subcarriers cost at least; `members` gets a group that is about best.

    Only groups of `size` subcarriers or more are meant.
    """
    num_devices, num_spans = link.spans_s.shape[0], link.spans_s.shape[1] - 1
    least_j = np.full((num_devices, num_spans), np.inf)
    members[:] = False
    terms = np.empty(len(link.prices))
    cheapest_j = np.cumsum(np.sort(link.prices))
    for device in range(num_devices):
        for span in range(link.num_spans[device]):
            begin_s, end_s = link.spans_s[device, span], link.spans_s[device, span + 1]
            if not link.shortest_s[device, -1] <= end_s:
                continue
            fewest = size
            while link.shortest_s[device, fewest - 1] > end_s:
                fewest += 1
            floor_j = cheapest_j[fewest - 1] + begin_s * link.circuit_power_w
            if floor_j >= link.worth_j[device]:
                least_j[device, span] = floor_j  # not worth it: no better bound is needed
            else:
                least_j[device, span] = _least(link, fewest, device, span, terms, members[device, span])
    return least_j


@inner
def _least(link: Uplink, fewest: int, device: int, span: int, terms: Floats, members: Bools) -> float:
    """The best bound found for a span; `members` is left with a group that has the power it takes, if one was seen."""
    begin_s, end_s = link.spans_s[device, span], link.spans_s[device, span + 1]
    rung, least_j = max(0, link.rungs[device, span] - 1), -np.inf
    while True:
        price = POWER_PRICES[rung]
        level = _find_level(link, fewest, device, span, price, terms, members)
        begin_j, _, _ = _choose(link, fewest, device, begin_s, level, price, terms, members)
        end_j, _, _ = _choose(link, fewest, device, end_s, level, price, terms, members)
        least_j = max(least_j, min(begin_j, end_j))
        link.levels[device, span], link.rungs[device, span] = level, rung
        if rung + 1 == len(POWER_PRICES) or _power(link, device, members, level) <= link.max_power_w:
            return least_j
        rung += 1


@inner
def _find_level(
    link: Uplink, fewest: int, device: int, span: int, price: float, terms: Floats, members: Bools
) -> float:
    """The largest level found at which the chosen subcarriers do not carry all bits by the end of the span."""
    end_s, lowest = link.spans_s[device, span + 1], -link.logs[device, 0]
    rate = link.need[device] / end_s
    level = link.levels[device, span]
    if level == -np.inf:
        level = (rate - link.logs[device, :fewest].sum()) / fewest
    low, high = lowest, np.inf
    for _ in range(NUM_STEPS):
        level = max(level, lowest + CLOSE_LEVEL)
        _, num_on, sum_logs = _choose(link, fewest, device, end_s, level, price, terms, members)
        if num_on * level + sum_logs < rate:
            low = level
        else:
            high = level
        proposal = (rate - sum_logs) / num_on if num_on > 0 else level + 1.0
        if not low < proposal < high:
            proposal = 0.5 * (low + high) if high < np.inf else low + 1.0
        if abs(proposal - level) < CLOSE_LEVEL or high - low < 2.0 * CLOSE_LEVEL:
            break
        level = proposal
    return float(low if low > lowest else level)


@inner
def _choose(
    link: Uplink,
    fewest: int,
    device: int,
    time_s: float,
    log_level: float,
    price: float,
    terms: Floats,
    members: Bools,
) -> tuple[float, int, float]:
    """The bound with the smallest terms and all below zero; how many of these carry bits, and their logarithms."""
    level, weight = np.exp(log_level), (1.0 + price) * time_s
    total_j = weight / time_s * level * link.need[device]
    total_j += time_s * (link.circuit_power_w - price * link.max_power_w)
    least_price = link.prices.min()
    count, num_on, sum_logs = 0, 0, 0.0
    members[:] = False
    for rank in range(len(members)):
        gain_j = _gain(link, device, rank, log_level, level, weight)
        if gain_j <= least_price:
            break
        term_j = link.prices[link.order[device, rank]] - gain_j
        if term_j < 0.0:
            members[link.order[device, rank]] = True
            total_j += term_j
            count, num_on, sum_logs = count + 1, num_on + 1, sum_logs + link.logs[device, rank]
    if count < fewest:
        for rank in range(len(members)):
            subcarrier = link.order[device, rank]
            terms[rank] = link.prices[subcarrier] - _gain(link, device, rank, log_level, level, weight)
            if members[subcarrier]:
                terms[rank] = np.inf
    while count < fewest:
        rank = int(np.argmin(terms))
        members[link.order[device, rank]] = True
        total_j += terms[rank]
        count += 1
        if log_level + link.logs[device, rank] > 0.0:
            num_on, sum_logs = num_on + 1, sum_logs + link.logs[device, rank]
        terms[rank] = np.inf
    return total_j, num_on, sum_logs


@inner
def _gain(link: Uplink, device: int, rank: int, log_level: float, level: float, weight: float) -> float:
    """How much a subcarrier lowers the bound, apart from its price."""
    over = log_level + link.logs[device, rank]
    return weight * (level * (over - 1.0) + link.inverse[device, rank]) if over > 0.0 else 0.0


@inner
def _power(link: Uplink, device: int, members: Bools, log_level: float) -> float:
    """What the group radiates at a water level."""
    level, power_w = np.exp(log_level), 0.0
    for rank in range(len(members)):
        if members[link.order[device, rank]]:
            power_w += max(0.0, level - link.inverse[device, rank])
    return power_w
