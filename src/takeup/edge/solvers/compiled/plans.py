"""Partial plans in arrays: the energy of one upload, devices added and removed, and the resulting start times."""

import numpy as np

from takeup.core.arrays import Ints
from takeup.core.compiled import bare
from takeup.edge.solvers.compiled.arrays import NO_INDEX, CellArrays, PlanArrays

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


# Partial plans: add and remove devices, and compute the resulting start times -----------------------------------------


@bare
def clear(plans: PlanArrays, plan: int) -> None:
    """Remove all devices."""
    for seat in range(plans.num_seated[plan]):
        plans.seat_of[plan, plans.seats[plan, seat].device] = NO_INDEX
    plans.num_seated[plan] = 0
    for subcarrier in range(plans.owner.shape[1]):
        plans.owner[plan, subcarrier] = NO_INDEX


@bare
def copy(plans: PlanArrays, source: int, target: int) -> None:
    """Make the target the same as the source."""
    for seat in range(plans.num_seated[target]):
        plans.seat_of[target, plans.seats[target, seat].device] = NO_INDEX
    plans.num_seated[target] = plans.num_seated[source]
    for seat in range(plans.num_seated[source]):
        _copy_seat(plans, source, seat, target, seat)
        plans.seats[target, seat].order = plans.seats[source, seat].order
    for subcarrier in range(plans.owner.shape[1]):
        plans.owner[target, subcarrier] = plans.owner[source, subcarrier]


@bare
def _copy_seat(plans: PlanArrays, source: int, seat: int, target: int, new_seat: int) -> None:
    """Copy all fields of a seat except the order, which belongs to the plan."""
    old, new = plans.seats[source, seat], plans.seats[target, new_seat]
    new.device, new.size, new.start_s, new.cost_j = old.device, old.size, old.start_s, old.cost_j
    new.cheapest_s, new.least_j = old.cheapest_s, old.least_j
    plans.seat_of[target, old.device] = new_seat
    for index in range(old.size):
        plans.groups[target, new_seat, index] = plans.groups[source, seat, index]


@bare
def worth(cell: CellArrays, plans: PlanArrays, plan: int) -> float:
    """What the plan saves, and what its devices are worth beyond."""
    total_j = 0.0
    for seat in range(plans.num_seated[plan]):
        each = plans.seats[plan, seat]
        total_j += cell.devices[each.device].worth_j - each.cost_j
    return total_j


@bare
def cost_until(cell: CellArrays, plans: PlanArrays, plan: int, seat: int, start_s: float) -> float:
    """What the upload of a seat costs if its core begins at `start_s`."""
    each = plans.seats[plan, seat]
    window_s = start_s - cell.devices[each.device].release_s
    if window_s >= each.cheapest_s:
        return float(each.least_j)
    plans.work[0] += 1
    return upload_cost(cell, each.device, plans.groups[plan, seat], each.size, window_s)


@bare
def try_starts(cell: CellArrays, plans: PlanArrays, plan: int, newcomer: int) -> float:
    """The start of a newcomer in the order of deadlines, those of the others in `new_s`; nan if one is too late.

    Backwards in time, a task takes the core on which it can run latest. Without a newcomer (-1) it returns 0.
    """
    for core in range(len(plans.taken_s)):
        plans.taken_s[core] = np.inf
    own_s = 0.0
    waits = newcomer >= 0
    for index in range(plans.num_seated[plan] - 1, -1, -1):
        seat = plans.seats[plan, index].order
        device = plans.seats[plan, seat].device
        if waits and cell.devices[newcomer].due_s >= cell.devices[device].due_s:
            own_s = _schedule_latest(cell, plans, newcomer)
            waits = False
        start_s = _schedule_latest(cell, plans, device)
        plans.seats[plan, seat].new_s = start_s
        if start_s <= cell.devices[device].release_s:
            return np.nan
    if waits:
        own_s = _schedule_latest(cell, plans, newcomer)
    return np.nan if newcomer >= 0 and own_s <= cell.devices[newcomer].release_s else own_s


@bare
def _schedule_latest(cell: CellArrays, plans: PlanArrays, device: int) -> float:
    """Schedule a task as late as possible; its start."""
    core = 0
    for other in range(1, len(plans.taken_s)):
        if plans.taken_s[other] > plans.taken_s[core]:
            core = other
    start_s = min(cell.devices[device].due_s, plans.taken_s[core]) - cell.devices[device].run_s
    plans.taken_s[core] = start_s
    return float(start_s)


@bare
def reschedule(cell: CellArrays, plans: PlanArrays, plan: int) -> bool:
    """Schedule all tasks as late as possible in the order of the plan; whether all can upload in time."""
    if np.isnan(try_starts(cell, plans, plan, int(np.int64(NO_INDEX)))):  # as a constant it would be compiled again
        return False
    for seat in range(plans.num_seated[plan]):
        each = plans.seats[plan, seat]
        if each.start_s != each.new_s:
            each.start_s = each.new_s
            each.cost_j = cost_until(cell, plans, plan, seat, each.start_s)
        if each.cost_j == np.inf:
            return False
    return True


@bare
def add(cell: CellArrays, plans: PlanArrays, plan: int, device: int, group: Ints, size: int) -> None:
    """Add a device, in the order of deadlines; `reschedule` computes its start and cost."""
    seat = plans.num_seated[plan]
    plans.num_seated[plan] = seat + 1
    plans.seat_of[plan, device] = seat
    new = plans.seats[plan, seat]
    new.device, new.size, new.start_s, new.cost_j = device, size, np.nan, np.inf
    for index in range(size):
        plans.groups[plan, seat, index] = group[index]
        plans.owner[plan, group[index]] = device
    index = seat
    while index > 0 and _due_s(cell, plans, plan, index - 1) > cell.devices[device].due_s:
        plans.seats[plan, index].order = plans.seats[plan, index - 1].order
        index -= 1
    plans.seats[plan, index].order = seat
    if size > 0:
        new.cheapest_s, new.least_j = cheapest(cell, device, plans.groups[plan, seat], size)


@bare
def _due_s(cell: CellArrays, plans: PlanArrays, plan: int, turn: int) -> float:
    return float(cell.devices[plans.seats[plan, plans.seats[plan, turn].order].device].due_s)


@bare
def remove(plans: PlanArrays, plan: int, seat: int) -> None:
    """Remove a device and move the last one to its seat; `reschedule` computes the starts."""
    for index in range(plans.seats[plan, seat].size):
        plans.owner[plan, plans.groups[plan, seat, index]] = NO_INDEX
    plans.seat_of[plan, plans.seats[plan, seat].device] = NO_INDEX
    last = plans.num_seated[plan] - 1
    plans.num_seated[plan] = last
    turn = 0
    for index in range(last + 1):
        order = plans.seats[plan, index].order
        if order != seat:
            plans.seats[plan, turn].order = seat if order == last else order
            turn += 1
    if seat != last:
        _copy_seat(plans, plan, last, plan, seat)


@bare
def insert(cell: CellArrays, device: int, group: Ints, size: int, subcarrier: int) -> None:
    """Insert a subcarrier into a group of this size, where its gain belongs."""
    index = size
    inverse = cell.channels[device, subcarrier].inverse
    while index > 0 and cell.channels[device, group[index - 1]].inverse > inverse:
        group[index] = group[index - 1]
        index -= 1
    group[index] = subcarrier


@bare
def price(cell: CellArrays, plans: PlanArrays, plan: int, seat: int) -> None:
    """Recompute the price of a seat after its group has changed."""
    each = plans.seats[plan, seat]
    each.cheapest_s, each.least_j = cheapest(cell, each.device, plans.groups[plan, seat], each.size)
    each.cost_j = cost_until(cell, plans, plan, seat, each.start_s)
