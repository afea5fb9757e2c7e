"""What Python calls: one kernel from tasks to an outcome, for any number of instances."""

from __future__ import annotations

import numpy as np

from takeup.core.compiled import bare, kernel
from takeup.edge.policies.fast.board import METRICS, SAVING, kernel_state
from takeup.edge.policies.fast.grow import assign_free_subcarriers, grow
from takeup.edge.policies.fast.oracle import water_level
from takeup.edge.policies.fast.plans import add, clear, copy, insert, remove, reschedule
from takeup.edge.policies.fast.search import evaluate_plan, regroup, search
from takeup.edge.policies.fast.shapes import (
    CellArrays,
    FinishedPlans,
    InitialPlans,
    KernelState,
    PlanArrays,
    PlanRoles,
    SearchEffort,
    TaskArrays,
)


@kernel
def solve_instances(
    tasks: TaskArrays, starts: InitialPlans, effort: SearchEffort, roles: PlanRoles, outcome: FinishedPlans
) -> None:
    """Fill the outcome. Starts are for all instances alike, and only for a search."""
    first_device, first_subcarrier, first_ratio = 0, 0, 0
    num_plans = 1 if effort.metric >= 0 else len(roles)
    for index in range(len(tasks.num_devices)):
        board = kernel_state(tasks, index, first_device, first_ratio, num_plans, roles)
        plan = roles.core
        if effort.metric >= 0:
            grow(board.cell, board.plans, board.room, plan, effort.metric, len(board.cell.devices))
            assign_free_subcarriers(board.cell, board.plans, plan)
        else:
            search(board, _best_initial_plan(board, starts), effort)
            plan = roles.best
        _write_plan(board, plan, outcome, first_device, first_subcarrier)
        outcome.work[index] = board.plans.work[0]
        first_device += tasks.num_devices[index]
        first_subcarrier += tasks.num_subcarriers[index]
        first_ratio += tasks.num_devices[index] * tasks.num_subcarriers[index]


@bare
def _best_initial_plan(board: KernelState, starts: InitialPlans) -> float:
    """The best of the greedy plans and the starts becomes the core, and its full plan the best; what that is worth."""
    cell, plans, room, roles = board
    best_j = -1.0
    for start in range(len(METRICS) + 3 * len(starts.wanted)):
        clear(plans, roles.trial)
        if start < len(METRICS):
            grow(cell, plans, room, roles.trial, start, len(cell.devices))
        else:
            _initial_plan(board, starts, (start - len(METRICS)) // 3, (start - len(METRICS)) % 3)
        found_j = evaluate_plan(board, roles.trial, best_j, len(cell.devices))
        if found_j > best_j:
            copy(plans, roles.trial, roles.core)
            copy(plans, roles.full, roles.best)
            best_j = found_j
    return best_j


@bare
def _initial_plan(board: KernelState, starts: InitialPlans, row: int, way: int) -> None:
    """Make a trial of a start: with its groups, with new groups for its devices, or by growing with them alone."""
    cell, plans, room, roles = board
    for device in range(len(cell.devices)):
        room.banned[device] = way == 2 and not starts.wanted[row, device]
    if way == 2:
        grow(cell, plans, room, roles.trial, SAVING, len(cell.devices))
        room.banned[:] = False
        return
    for rank in range(cell.ranking.shape[1]):
        device = cell.ranking[SAVING, rank]
        if starts.wanted[row, device] and plans.num_seated[roles.trial] < plans.seats.shape[1]:
            size = 0
            for subcarrier in range(plans.owner.shape[1]):
                if way == 0 and starts.owner[row, subcarrier] == device:
                    insert(cell, device, plans.group, size, subcarrier)
                    size += 1
            if way == 1 or size > 0:
                add(cell, plans, roles.trial, device, plans.group, size)
    while not (regroup(cell, plans, room, roles.trial) if way == 1 else reschedule(cell, plans, roles.trial)):
        remove(plans, roles.trial, _least(cell, plans, roles.trial))


@bare
def _least(cell: CellArrays, plans: PlanArrays, plan: int) -> int:
    """The seat of the device that saves least, among those that are too late if any is."""
    least, least_j, least_is_late = 0, np.inf, False
    for seat in range(plans.num_seated[plan]):
        is_late = plans.seats[plan, seat].cost_j == np.inf
        reach_j = cell.devices[plans.seats[plan, seat].device].reach_j
        if is_late > least_is_late or (is_late == least_is_late and reach_j < least_j):
            least, least_j, least_is_late = seat, reach_j, is_late
    return least


@bare
def _write_plan(
    board: KernelState, plan: int, outcome: FinishedPlans, first_device: int, first_subcarrier: int
) -> None:
    """Write a plan down, with times and powers."""
    cell, plans, _, _ = board
    for subcarrier in range(plans.owner.shape[1]):
        outcome.owners[first_subcarrier + subcarrier] = plans.owner[plan, subcarrier]
    for device in range(len(cell.devices)):
        outcome.can_save[first_device + device] = cell.devices[device].reach_j > 0.0
    for seat in range(plans.num_seated[plan]):
        each = plans.seats[plan, seat]
        release_s = cell.devices[each.device].release_s
        time_s = min(each.cheapest_s, each.start_s - release_s)
        level, _ = water_level(cell, each.device, plans.groups[plan, seat], each.size, time_s)
        spent_w = cell.circuit_power_w
        for index in range(each.size):
            subcarrier = plans.groups[plan, seat, index]
            power_w = max(0.0, level - cell.channels[each.device, subcarrier].inverse)
            outcome.powers_w[first_subcarrier + subcarrier] = power_w
            spent_w += power_w
        outcome.start_s[first_device + each.device] = each.start_s
        outcome.upload_s[first_device + each.device] = release_s + time_s
        outcome.spent_j[first_device + each.device] = time_s * spent_w
