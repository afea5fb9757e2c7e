"""The best group of a device at given prices, where there are too many groups to list: bounds by duality.

How it works. For an upload of t seconds over subcarriers S, with ratios g and prices p of subcarriers, and any water
level a and price r of power, the least cost of energy and subcarriers is at least

    (1 + r) a K + t (circuit - r most) + sum over S of (p - (1 + r) t f(a)),    K = ln 2 * bits / B,
    f(a) = a ln(a g) - a + 1/g   where a g > 1,   otherwise 0,

so for groups of n or more at least that with the n smallest terms of all subcarriers and all that are below zero. It is
a concave function of t, hence least at an end of any span of t. The best level is the one at which these subcarriers
together carry the bits; a price of power matters where they would need more than there is.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from takeup.core.arrays import Bools, Floats, Ints
from takeup.core.compiled import inner, kernel

NUM_HALVINGS = 18
POWER_PRICES = np.array([0.0, 0.3, 1.0, 3.0, 10.0, 50.0])  # a longer list is slower, and proves no more


class Uplink(NamedTuple):
    """What uploads depend on: logarithms and inverse ratios by device and subcarrier, bits, powers.

    `shortest_s[device, n - 1]` is the shortest upload over the n best subcarriers; a row of `spans_s` has the ends of
    the spans of time that are looked at, rising, one more than `num_spans`. `prices` are
    those of the subcarriers.
    """

    logs: Floats
    inverse: Floats
    shortest_s: Floats
    need: Floats
    max_power_w: float
    circuit_power_w: float
    spans_s: Floats
    num_spans: Ints
    prices: Floats


@kernel
def best_wide(link: Uplink, size: int) -> tuple[Floats, Bools]:
    """For every device and span, what energy and subcarriers cost together at least, and a group that is about best.

    Only groups of `size` subcarriers or more are meant.
    """
    num_devices, num_spans = link.spans_s.shape[0], link.spans_s.shape[1] - 1
    least_j = np.full((num_devices, num_spans), np.inf)
    members = np.zeros((num_devices, num_spans, len(link.prices)), np.bool_)
    terms = np.empty(len(link.prices))
    for device in range(num_devices):
        for span in range(link.num_spans[device]):
            if link.shortest_s[device, -1] <= link.spans_s[device, span + 1]:
                least_j[device, span] = _least(link, size, device, span, terms, members[device, span])
    return least_j, members


@inner
def _least(link: Uplink, size: int, device: int, span: int, terms: Floats, members: Bools) -> float:
    """The best bound found for a span; `members` is left with a group that has the power it takes, if one was seen."""
    begin_s, end_s = link.spans_s[device, span], link.spans_s[device, span + 1]
    time_s = np.sqrt(begin_s * end_s)
    least_j = -np.inf
    for price in POWER_PRICES:
        low = -link.logs[device].max()
        high = low + link.need[device] / (time_s * size) + 1.0
        for _ in range(NUM_HALVINGS):
            log_level = 0.5 * (low + high)
            _choose(link, size, device, time_s, log_level, price, terms, members)
            carried = 0.0
            for each in range(len(link.prices)):
                if members[each]:
                    carried += max(0.0, log_level + link.logs[device, each])
            if carried * time_s < link.need[device]:
                low = log_level
            else:
                high = log_level
        begin_j = _choose(link, size, device, begin_s, high, price, terms, members)
        end_j = _choose(link, size, device, end_s, high, price, terms, members)
        least_j = max(least_j, min(begin_j, end_j))
        if _power(link, device, members, high) <= link.max_power_w:
            break
    return least_j


@inner
def _choose(
    link: Uplink,
    size: int,
    device: int,
    time_s: float,
    log_level: float,
    price: float,
    terms: Floats,
    members: Bools,
) -> float:
    """The subcarriers with the smallest terms and all with a term below zero, and the bound that they give."""
    level = np.exp(log_level)
    weight = (1.0 + price) * time_s
    total_j = weight / time_s * level * link.need[device]
    total_j += time_s * (link.circuit_power_w - price * link.max_power_w)
    count = 0
    for each in range(len(link.prices)):
        over = log_level + link.logs[device, each]
        terms[each] = link.prices[each]
        if over > 0.0:
            terms[each] -= weight * (level * (over - 1.0) + link.inverse[device, each])
        members[each] = terms[each] < 0.0
        if members[each]:
            total_j += terms[each]
            count += 1
    while count < size:
        smallest = -1
        for each in range(len(link.prices)):
            if not members[each] and (smallest < 0 or terms[each] < terms[smallest]):
                smallest = each
        members[smallest] = True
        total_j += terms[smallest]
        count += 1
    return float(total_j)


@inner
def _power(link: Uplink, device: int, members: Bools, log_level: float) -> float:
    """What the group radiates at a water level."""
    level, power_w = np.exp(log_level), 0.0
    for each in range(len(members)):
        if members[each]:
            power_w += max(0.0, level - link.inverse[device, each])
    return power_w
