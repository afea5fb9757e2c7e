"""Greedy growth of plans: the state of the kernels with its rankings, and the best device to add next."""

import numpy as np

from takeup.core.arrays import Ints
from takeup.core.compiled import bare, inner
from takeup.edge.solvers.compiled.arrays import (
    CHANNEL,
    DEVICE,
    NO_INDEX,
    SEAT,
    WISH,
    CellArrays,
    KernelState,
    PlanArrays,
    PlanRoles,
    SearchScratch,
    TaskArrays,
)
from takeup.edge.solvers.compiled.plans import add, cost_until, insert, price, reschedule, try_starts, upload_cost

# The board on which plans are made: values computed once per instance, and scratch arrays -----------------------------

METRICS = SAVING, PER_SUBCARRIER, PER_CPU_SECOND, PER_BUNDLE = 0, 1, 2, 3  # as in takeup.edge.policies.joint
NUM_SEEN = 1 << 11  # remembered plans; a later one overwrites an earlier one


@inner
def kernel_state(
    tasks: TaskArrays, index: int, first_device: int, first_ratio: int, num_plans: int, roles: PlanRoles
) -> KernelState:
    """A board for one of the instances, with empty plans; a single plan can only grow."""
    num_devices, num_subcarriers = tasks.num_devices[index], tasks.num_subcarriers[index]
    most = min(num_devices, num_subcarriers)
    num_searched = num_subcarriers if num_plans > 1 else 0
    cell = cell_arrays(tasks, index, first_device, first_ratio)
    plans = PlanArrays(
        np.empty((num_plans, most), SEAT),
        np.empty((num_plans, most, num_subcarriers), np.int64),
        np.full((num_plans, num_devices), NO_INDEX),
        np.full((num_plans, num_subcarriers), NO_INDEX),
        np.zeros(num_plans, np.int64),
        np.empty(tasks.num_cores[index]),
        np.empty(num_subcarriers + 1, np.int64),
        np.zeros(1, np.int64),
    )
    room = SearchScratch(
        np.zeros(num_devices, np.bool_),
        np.empty(num_subcarriers, np.int64),
        np.empty(most + 1, WISH),
        np.empty((most + 1, num_searched), np.int64),
        np.zeros(NUM_SEEN if num_plans > 1 else 0, np.uint64),
        np.zeros((num_searched, num_searched + 1)),
        np.empty((min(most, num_searched), num_searched)),
    )
    return KernelState(cell, plans, room, roles)


@inner
def cell_arrays(tasks: TaskArrays, index: int, first_device: int, first_ratio: int) -> CellArrays:
    num_devices, num_subcarriers = tasks.num_devices[index], tasks.num_subcarriers[index]
    due_s = tasks.due_s[first_device : first_device + num_devices]
    cell = CellArrays(
        tasks.max_power_w[index],
        tasks.circuit_power_w[index],
        np.max(due_s) if num_devices > 0 else 1.0,
        np.empty(num_devices, DEVICE),
        np.empty((num_devices, num_subcarriers), CHANNEL),
        np.empty((0, 0), np.int64),
    )
    order = np.empty(num_subcarriers, np.int64)
    for device in range(num_devices):
        each, source = cell.devices[device], first_device + device
        each.bits_per_hz, each.worth_j = tasks.bits_per_hz[source], tasks.worth_j[source]
        each.due_s, each.run_s, each.release_s = tasks.due_s[source], tasks.run_s[source], tasks.release_s[source]
        for subcarrier in range(num_subcarriers):
            ratio = tasks.ratios[first_ratio + device * num_subcarriers + subcarrier]
            cell.channels[device, subcarrier].log = np.log2(ratio)
            cell.channels[device, subcarrier].inverse = 1.0 / ratio
        _rank_channels(cell, device, order)
        window_s = each.due_s - each.run_s - each.release_s
        each.reach_j = each.worth_j - upload_cost(cell, device, order, num_subcarriers, window_s)
    return CellArrays(
        cell.max_power_w, cell.circuit_power_w, cell.longest_s, cell.devices, cell.channels, _ranking(cell)
    )


@bare
def _rank_channels(cell: CellArrays, device: int, order: Ints) -> None:
    """Subcarriers from the best on, equal ones as numbered; short lists are sorted best by insertion."""
    for subcarrier in range(len(order)):
        inverse, place = cell.channels[device, subcarrier].inverse, subcarrier
        while place > 0 and cell.channels[device, order[place - 1]].inverse > inverse:
            order[place] = order[place - 1]
            place -= 1
        order[place] = subcarrier
    for rank in range(len(order)):
        cell.channels[device, rank].best = order[rank]


@inner
def _ranking(cell: CellArrays) -> Ints:
    """Devices that could save anything, by what they can reach at most: a row for each metric."""
    promising = np.empty(len(cell.devices), np.int64)
    count = 0
    for device in range(len(cell.devices)):
        if cell.devices[device].reach_j > 0.0:
            promising[count] = device
            count += 1
    ranking, hopes = np.empty((len(METRICS), count), np.int64), np.empty(count)
    for metric in METRICS:
        for index in range(count):
            device = promising[index]
            hopes[index] = -metric_value(cell, device, cell.devices[device].reach_j, 1, metric)
        order = np.argsort(hopes)
        for index in range(count):
            ranking[metric, index] = promising[order[index]]
    return ranking


@bare
def metric_value(cell: CellArrays, device: int, gain_j: float, size: int, metric: int) -> float:
    """The worth of a newcomer by one of the metrics."""
    run_s = cell.devices[device].run_s
    if metric == PER_SUBCARRIER:
        return gain_j / size
    if metric == PER_CPU_SECOND:
        return float(gain_j / run_s)
    if metric == PER_BUNDLE:
        return float(gain_j / (size / cell.channels.shape[1] + run_s / cell.longest_s))
    return gain_j


# The greedy choice: the smallest group of a newcomer, what it adds, and the assignment of left-over subcarriers -------

WORTH_IT = 1e-12  # of the energy of an upload; a smaller reduction is rounding
ROUNDING_MARGIN = 1e-9  # relative margin on upper bounds of gains, so that rounding never excludes a device


@bare
def smallest_group(cell: CellArrays, plans: PlanArrays, plan: int, device: int, window_s: float) -> tuple[int, float]:
    """The fewest free subcarriers that make an upload worth it, in `plans.group`: how many (0: none), and the cost."""
    need = cell.devices[device].bits_per_hz / window_s
    sum_logs, sum_inverse, size = 0.0, 0.0, 0
    for rank in range(plans.owner.shape[1]):
        subcarrier = cell.channels[device, rank].best
        if plans.owner[plan, subcarrier] != NO_INDEX:
            continue
        channel = cell.channels[device, subcarrier]
        if size > 0 and cell.max_power_w + sum_inverse <= size * channel.inverse:
            return 0, np.inf  # not even with all the power would it be used, nor would any after it
        plans.group[size] = subcarrier
        size += 1
        sum_logs += channel.log
        sum_inverse += channel.inverse
        if size * np.log2((cell.max_power_w + sum_inverse) / size) + sum_logs < need:
            continue
        plans.work[0] += 1
        cost_j = upload_cost(cell, device, plans.group, size, window_s)
        if cost_j < cell.devices[device].worth_j:
            return size, cost_j
    return 0, np.inf


@bare
def gain_of(cell: CellArrays, plans: PlanArrays, plan: int, device: int) -> tuple[float, int]:
    """What a newcomer adds to the plan, and the size of its group in `plans.group`; -inf and 0 if it adds nothing."""
    own_s = try_starts(cell, plans, plan, device)
    if np.isnan(own_s):
        return -np.inf, 0
    size, cost_j = smallest_group(cell, plans, plan, device, own_s - cell.devices[device].release_s)
    gain_j = cell.devices[device].worth_j - cost_j
    for seat in range(plans.num_seated[plan]):
        if gain_j <= 0.0:
            return -np.inf, 0
        each = plans.seats[plan, seat]
        if each.new_s != each.start_s:
            gain_j -= cost_until(cell, plans, plan, seat, each.new_s) - each.cost_j
    return (gain_j, size) if gain_j > 0.0 else (-np.inf, 0)


@bare
def grow(cell: CellArrays, plans: PlanArrays, room: SearchScratch, plan: int, metric: int, most_asked: int) -> None:
    """Add the best newcomer until none adds anything; only the first `most_asked`, and no banned device."""
    while plans.num_seated[plan] < plans.seats.shape[1]:
        device, size = _best_newcomer(cell, plans, room, plan, metric, most_asked)
        if device == NO_INDEX:
            return
        add(cell, plans, plan, device, room.chosen, size)
        reschedule(cell, plans, plan)


@bare
def _best_newcomer(
    cell: CellArrays, plans: PlanArrays, room: SearchScratch, plan: int, metric: int, most_asked: int
) -> tuple[int, int]:
    """The best newcomer, and the size of its group in `room.chosen`; stops once no later device can be better."""
    best, best_value, best_size = NO_INDEX, 0.0, 0
    for rank in range(min(most_asked, cell.ranking.shape[1])):
        device = cell.ranking[metric, rank]
        if metric_value(cell, device, cell.devices[device].reach_j * (1.0 + ROUNDING_MARGIN), 1, metric) < best_value:
            break
        if plans.seat_of[plan, device] != NO_INDEX or room.banned[device]:
            continue
        gain_j, size = gain_of(cell, plans, plan, device)
        if size == 0:
            continue
        value = metric_value(cell, device, gain_j, size, metric)
        if value > best_value or (value == best_value and device < best):
            best, best_value, best_size = device, value, size
            for index in range(size):
                room.chosen[index] = plans.group[index]
    return best, best_size


@bare
def assign_free_subcarriers(cell: CellArrays, plans: PlanArrays, plan: int) -> None:
    """Give every free subcarrier to the device whose upload it makes cheaper by most, while it helps at all.

    The best free subcarrier of a device helps it most, so only that one is priced.
    """
    for seat in range(plans.num_seated[plan]):
        plans.seats[plan, seat].wish_at = NO_INDEX
        _best_free_subcarrier(cell, plans, plan, seat)
    while True:
        best, most_j = NO_INDEX, 0.0
        for seat in range(plans.num_seated[plan]):
            if plans.seats[plan, seat].wish_j > most_j:
                best, most_j = seat, plans.seats[plan, seat].wish_j
        if best == NO_INDEX:
            return
        lucky = plans.seats[plan, best]
        given = cell.channels[lucky.device, lucky.wish_at].best
        insert(cell, lucky.device, plans.groups[plan, best], lucky.size, given)
        lucky.size += 1
        plans.owner[plan, given] = lucky.device
        price(cell, plans, plan, best)
        for seat in range(plans.num_seated[plan]):
            each = plans.seats[plan, seat]
            if each.wish_at != NO_INDEX and cell.channels[each.device, each.wish_at].best == given:
                _best_free_subcarrier(cell, plans, plan, seat)


@bare
def _best_free_subcarrier(cell: CellArrays, plans: PlanArrays, plan: int, seat: int) -> None:
    """What the best free subcarrier would save a device, and its rank; the scan resumes after the previous rank."""
    each = plans.seats[plan, seat]
    first = each.wish_at + 1
    each.wish_j, each.wish_at = 0.0, NO_INDEX
    for rank in range(first, plans.owner.shape[1]):
        subcarrier = cell.channels[each.device, rank].best
        if plans.owner[plan, subcarrier] == NO_INDEX:
            for index in range(each.size):
                plans.group[index] = plans.groups[plan, seat, index]
            insert(cell, each.device, plans.group, each.size, subcarrier)
            plans.work[0] += 1
            window_s = each.start_s - cell.devices[each.device].release_s
            reduction_j = each.cost_j - upload_cost(cell, each.device, plans.group, each.size + 1, window_s)
            if reduction_j > WORTH_IT * each.cost_j:
                each.wish_j, each.wish_at = reduction_j, rank
            return
