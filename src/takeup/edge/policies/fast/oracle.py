"""The energy oracle for one device and one group: the formulas of `takeup.edge.energy`, one number at a time.

How it works. With n subcarriers on, the energy E of an upload of t seconds has the slope

    dE/dt = p + P - ln 2 * bits / (B t) * level,       level = 2 ^ ((bits / (B t) - sum log2 g_l) / n)

which rises with t. So a limit with a falling E is the best time; otherwise the best time is where the slope is zero,
and subcarrier n is on there if the slope is not negative at the longest time for which n is on.
"""

from __future__ import annotations

import numpy as np

from takeup.core.arrays import Ints
from takeup.core.compiled import bare
from takeup.edge.policies.fast.shapes import CellArrays

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
        time_s = _shortest(cell, device, group, size)
        return time_s, time_s * (cell.circuit_power_w + cell.max_power_w)
    time_s = LN2 * cell.devices[device].bits_per_hz / (num_on * y)
    return time_s, time_s * (cell.circuit_power_w + max(0.0, power_w))


@bare
def _shortest(cell: CellArrays, device: int, group: Ints, size: int) -> float:
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
