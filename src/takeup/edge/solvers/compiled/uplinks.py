"""Uplinks of a cell in arrays, for all kinds of rates and groups; the energy of one upload, the best of priced groups.

Rates follow Shannon's formula, or use one of some modulations. A group is any set of subcarriers, or neighbours.
"""

from typing import NamedTuple

import numpy as np

from takeup.core.arrays import Bools, Floats, Ints
from takeup.core.compiled import bare, inner, kernel
from takeup.edge.solvers.compiled.arrays import CellArrays, TaskArrays
from takeup.edge.solvers.compiled.greedy import cell_arrays
from takeup.edge.solvers.compiled.plans import upload_cost

BLOCKED = 1e18  # the price of a subcarrier that cannot be used
ROUNDING = 1e-10  # relative margin on the limit of an upload


class Uplinks(NamedTuple):
    """The cell, and natural logarithms and inverse ratios to noise by device and subcarrier.

    `need` has the bits of a task in nats per hertz; `ranked[device]` are the subcarriers from the best on. `rates` and
    `ratios` are of the modulations, in nats; empty for Shannon's formula. `may_have[size]` tells which sizes of groups
    are allowed.
    """

    cell: CellArrays
    logs: Floats
    inverse: Floats
    need: Floats
    ranked: Ints
    rates: Floats
    ratios: Floats
    contiguous: bool
    may_have: Bools


@kernel
def cell_of(tasks: TaskArrays) -> CellArrays:
    """The only cell of these tasks."""
    return cell_arrays(tasks, 0, 0, 0)


@bare
def energy(up: Uplinks, device: int, group: Ints, size: int, window_s: float) -> float:
    """The least energy of an upload within the window over a group, best subcarrier first; inf if there is none."""
    if len(up.rates) == 0:
        return upload_cost(up.cell, device, group, size, window_s)
    best_j = np.inf
    for number in range(len(up.rates)):
        inverse = 0.0
        for index in range(size):
            inverse += up.inverse[device, group[index]]
            power_w = up.ratios[number] * inverse
            if power_w > up.cell.max_power_w:
                break
            time_s = up.need[device] / (up.rates[number] * (index + 1))
            if time_s <= window_s * (1.0 + ROUNDING):
                best_j = min(best_j, time_s * (up.cell.circuit_power_w + power_w))
    return best_j


class Selection(NamedTuple):
    """Scratch arrays of a selection: a term for each subcarrier, the chosen ones, and the smallest terms."""

    terms: Floats
    members: Bools
    smallest: Floats
    places: Ints


@inner
def selection(num_subcarriers: int) -> Selection:
    """New scratch arrays."""
    return Selection(
        np.empty(num_subcarriers),
        np.empty(num_subcarriers, np.bool_),
        np.empty(num_subcarriers + 1),
        np.empty(num_subcarriers + 1, np.int64),
    )


@bare
def select(chosen: Selection, size: int, or_more: bool, contiguous: bool) -> float:
    """Choose the group of this size (or more) with the least sum of terms; the sum, at least `BLOCKED` if none is free.

    Of groups of neighbours the sum is that of a window; otherwise the smallest terms are chosen, and all below zero.
    """
    if contiguous:
        return _select_window(chosen, size, or_more)
    total, count, held = 0.0, 0, 0
    for at in range(len(chosen.terms)):
        term = chosen.terms[at]
        chosen.members[at] = or_more and term < 0.0
        if chosen.members[at]:
            total += term
            count += 1
        elif held < size or term < chosen.smallest[held - 1]:
            place = held if held < size else size - 1
            while place > 0 and chosen.smallest[place - 1] > term:
                chosen.smallest[place], chosen.places[place] = chosen.smallest[place - 1], chosen.places[place - 1]
                place -= 1
            chosen.smallest[place], chosen.places[place] = term, at
            held = min(size, held + 1)
    for index in range(size - count):
        total += chosen.smallest[index]
        chosen.members[chosen.places[index]] = True
    return total


@bare
def _select_window(chosen: Selection, size: int, or_more: bool) -> float:
    """`before` is the sum of the terms that a longer window leaves out at its beginning: the largest one is best."""
    best, best_first, best_end = BLOCKED, 0, 0
    first, run, before, most, most_first = 0, 0.0, 0.0, 0.0, 0
    for at in range(len(chosen.terms)):
        if chosen.terms[at] >= BLOCKED:
            first, run, before, most, most_first = at + 1, 0.0, 0.0, 0.0, at + 1
            continue
        run += chosen.terms[at]
        if at - first >= size:
            before += chosen.terms[at - size]
            if before > most or not or_more:
                most, most_first = before, at - size + 1
        if at - first + 1 >= size and run - most < best:
            best, best_first, best_end = run - most, most_first, at + 1
    for at in range(len(chosen.terms)):
        chosen.members[at] = best_first <= at < best_end
    return best


@bare
def collect(up: Uplinks, device: int, members: Bools, group: Ints) -> int:
    """Write the members into the group, the best one of the device first; how many there are."""
    size = 0
    for rank in range(len(members)):
        if members[up.ranked[device, rank]]:
            group[size] = up.ranked[device, rank]
            size += 1
    return size


@bare
def water_terms(up: Uplinks, device: int, chosen: Selection, prices: Floats, log_level: float, weight: float) -> None:
    """Fill the terms of subcarriers at a water level: the price less what carrying bits is worth."""
    level = np.exp(log_level)
    for at in range(len(prices)):
        over = log_level + up.logs[device, at]
        carried = weight * (level * (over - 1.0) + up.inverse[device, at]) if over > 0.0 else 0.0
        chosen.terms[at] = prices[at] - carried


@bare
def carried_by(up: Uplinks, device: int, members: Bools, log_level: float) -> tuple[int, float, float]:
    """How many members carry bits at a water level, the sum of their logarithms, and the power they take."""
    level, count, sum_logs, power_w = np.exp(log_level), 0, 0.0, 0.0
    for at in range(len(members)):
        if members[at] and log_level + up.logs[device, at] > 0.0:
            count += 1
            sum_logs += up.logs[device, at]
            power_w += level - up.inverse[device, at]
    return count, sum_logs, power_w


@bare
def next_level(level: float, low: float, high: float, count: int, sum_logs: float, rate: float) -> float:
    """The water level at which these subcarriers would carry the rate, kept between bounds that are known."""
    proposal = (rate - sum_logs) / count if count > 0 else level + 1.0
    if low < proposal < high:
        return proposal
    if high == np.inf:
        return level + 0.7
    return level - 0.7 if low == -np.inf else 0.5 * (low + high)
