"""The board on which plans are made: values computed once per instance, and scratch arrays."""

from __future__ import annotations

import numpy as np

from takeup.core.arrays import Ints
from takeup.core.compiled import bare, inner
from takeup.edge.policies.fast.oracle import upload_cost
from takeup.edge.policies.fast.shapes import (
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
    cell = _cell(tasks, index, first_device, first_ratio)
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
def _cell(tasks: TaskArrays, index: int, first_device: int, first_ratio: int) -> CellArrays:
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
