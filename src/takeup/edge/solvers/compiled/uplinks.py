"""Uplinks of a cell in arrays, for all kinds of rates and groups; the energy of one upload, the best of priced groups.

Rates follow Shannon's formula, or use one of some modulations. A group is any set of subcarriers, or neighbours.
"""

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from takeup.core.arrays import Bools, Floats, Ints, record
from takeup.core.compiled import bare, inner, kernel

Records = npt.NDArray[Any]

BLOCKED = 1e18  # the price of a subcarrier that cannot be used
ROUNDING = 1e-10  # relative margin on the limit of an upload


def _record(names: str) -> np.dtype[np.void]:
    return record([(name, np.float64) for name in names.split()])


DEVICE = _record("bits_per_hz due_s run_s release_s worth_j reach_j")  # reach: what it saves alone at the site
CHANNEL = _record("log inverse")  # of the ratio to noise


class CellArrays(NamedTuple):
    """Devices and their channels."""

    max_power_w: float
    circuit_power_w: float
    devices: Records
    channels: Records


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
def measure_reach(cell: CellArrays, ranked: Ints) -> None:
    """Fill in what every device would save if it were alone; `ranked` has its subcarriers from the best on."""
    for device in range(len(cell.devices)):
        each = cell.devices[device]
        window_s = each.due_s - each.run_s - each.release_s
        each.reach_j = each.worth_j - upload_cost(cell, device, ranked[device], ranked.shape[1], window_s)


# The energy oracle for one device and one group: the formulas of `takeup.edge.energy`, one number at a time -----------
#
# How it works. With n subcarriers on, the energy E of an upload of t seconds has the slope
#
#     dE/dt = p + P - ln 2 * bits / (B t) * level,       level = 2 ^ ((bits / (B t) - sum log2 g_l) / n)
#
# which rises with t. So a limit with a falling E is the best time; otherwise the best time is where the slope is zero,
# and subcarrier n is on there if the slope is not negative at the longest time for which n is on.

LN2 = float(np.log(2.0))
CLOSE = 1e-13  # relative; how near the root of Lambert's equation must be


@bare
def water_level(cell: CellArrays, device: int, group: Ints, size: int, time_s: float) -> tuple[float, float]:
    """How high the water stands, and the power it takes, if the upload lasts this long."""
    need = cell.devices[device].bits_per_hz / time_s
    sum_logs, sum_inverse, num_on = 0.0, 0.0, 0
    for index in range(size):
        log = cell.channels[device, group[index]].log
        if need < sum_logs - num_on * log:
            break
        sum_logs += log
        sum_inverse += cell.channels[device, group[index]].inverse
        num_on += 1
    level = np.exp2((need - sum_logs) / num_on)
    return level, max(0.0, num_on * level - sum_inverse)


@bare
def upload_cost(cell: CellArrays, device: int, group: Ints, size: int, window_s: float) -> float:
    """The least energy of an upload within the window over a group, best subcarrier first; inf if there is none."""
    if window_s <= 0.0 or size == 0:
        return np.inf
    level, power_w = water_level(cell, device, group, size, window_s)
    if not power_w <= cell.max_power_w:
        return np.inf
    if cell.circuit_power_w + power_w - LN2 * cell.devices[device].bits_per_hz / window_s * level <= 0.0:
        return window_s * (cell.circuit_power_w + power_w)
    return cheapest(cell, device, group, size)[1]


@bare
def cheapest(cell: CellArrays, device: int, group: Ints, size: int) -> tuple[float, float]:
    """The time of the cheapest upload of all, and its energy; a time of inf where longer is always cheaper."""
    sum_logs, sum_inverse, num_on = 0.0, 0.0, 0
    for index in range(size):
        log, inverse = cell.channels[device, group[index]].log, cell.channels[device, group[index]].inverse
        room_w = cell.circuit_power_w - sum_inverse + num_on * inverse
        if room_w < LN2 * (sum_logs - num_on * log) * inverse:
            break
        sum_logs += log
        sum_inverse += inverse
        num_on += 1
    mean_gain = np.exp2(sum_logs / num_on)
    y = 1.0 + _lambert(mean_gain * (cell.circuit_power_w - sum_inverse) / (num_on * np.e))
    if y <= 0.0:
        return np.inf, np.nan
    power_w = num_on * np.exp(y) / mean_gain - sum_inverse
    if power_w > cell.max_power_w:
        time_s = shortest(cell, device, group, size)
        return time_s, time_s * (cell.circuit_power_w + cell.max_power_w)
    time_s = LN2 * cell.devices[device].bits_per_hz / (num_on * y)
    return time_s, time_s * (cell.circuit_power_w + max(0.0, power_w))


@bare
def shortest(cell: CellArrays, device: int, group: Ints, size: int) -> float:
    """The time of an upload with all the power there is."""
    sum_logs, sum_inverse, num_on = 0.0, 0.0, 0
    for index in range(size):
        inverse = cell.channels[device, group[index]].inverse
        if num_on > 0 and cell.max_power_w + sum_inverse <= num_on * inverse:
            break
        sum_logs += cell.channels[device, group[index]].log
        sum_inverse += inverse
        num_on += 1
    rate = num_on * np.log2((cell.max_power_w + sum_inverse) / num_on) + sum_logs
    return float(cell.devices[device].bits_per_hz / max(rate, 0.0))


@bare
def _lambert(x: float) -> float:
    """The principal branch of Lambert's function by Halley's method; -1 at its end and beyond."""
    if x <= -(1.0 - 1e-12) / np.e:
        return -1.0
    if x < -0.25:
        root = np.sqrt(2.0 * (np.e * x + 1.0))
        w = -1.0 + root - root * root / 3.0 + 11.0 / 72.0 * root**3
    elif x < 3.0:
        w = np.log1p(x) * (1.0 - 0.3 * np.log1p(x) / (1.0 + np.log1p(x))) if x > 0.0 else x * (1.0 - x)
    else:
        log = np.log(x)
        w = log - np.log(log) * (1.0 - 1.0 / log)
    for _ in range(20):
        power = np.exp(w)
        error = w * power - x
        step = error / (power * (w + 1.0) - (w + 2.0) * error / (2.0 * w + 2.0))
        w -= step
        if abs(step) <= CLOSE * (1.0 + abs(w)):
            break
    return float(w)


# An upload with any rates, and the best of priced groups --------------------------------------------------------------


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


def new_selection(num_subcarriers: int) -> Selection:
    """New scratch arrays."""
    return Selection(
        np.empty(num_subcarriers),
        np.empty(num_subcarriers, np.bool_),
        np.empty(num_subcarriers + 1),
        np.empty(num_subcarriers + 1, np.int64),
    )


selection = inner(new_selection)


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
def best_window(
    up: Uplinks, device: int, chosen: Selection, size: int, ratio: float, time_s: float, most_j: float
) -> float:
    """The least energy and terms of neighbours of which the best `size` are in use; `most_j` if none costs less.

    Those in use have this ratio to noise for this time, within the power there is.
    """
    total, held, best_j, best_first, best_end = 0.0, 0, most_j, 0, 0
    for rank in range(len(chosen.terms)):
        if held < size and chosen.terms[up.ranked[device, rank]] < BLOCKED:
            total += up.inverse[device, up.ranked[device, rank]]
            held += 1
    if held < size or ratio * total > up.cell.max_power_w * (1.0 + ROUNDING):
        return most_j
    least_j = time_s * (up.cell.circuit_power_w + ratio * total)
    for first in range(len(chosen.terms) - size + 1):
        price_j, total, held = 0.0, 0.0, 0
        for at in range(first, len(chosen.terms)):
            price_j += chosen.terms[at]
            if price_j + least_j >= best_j:
                break
            inverse = up.inverse[device, at]
            if held == size:
                if inverse >= chosen.smallest[held - 1]:
                    continue
                held -= 1
                total -= chosen.smallest[held]
            place = held
            while place > 0 and chosen.smallest[place - 1] > inverse:
                chosen.smallest[place] = chosen.smallest[place - 1]
                place -= 1
            chosen.smallest[place] = inverse
            total += inverse
            held += 1
            if held == size and ratio * total <= up.cell.max_power_w * (1.0 + ROUNDING):
                cost_j = price_j + time_s * (up.cell.circuit_power_w + ratio * total)
                if cost_j < best_j:
                    best_j, best_first, best_end = cost_j, first, at + 1
    for at in range(len(chosen.terms)):
        chosen.members[at] = best_first <= at < best_end
    return best_j


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
