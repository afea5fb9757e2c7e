"""The kernel of the joint policies, from instances to arrays, to finished plans, to answers."""

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from takeup.core.compiled import bare, kernel
from takeup.edge.model import UNASSIGNED, Allocation, Answer, Instance, Reason
from takeup.edge.solvers.compiled.arrays import (
    FinishedPlans,
    InitialPlans,
    KernelState,
    PlanRoles,
    SearchEffort,
    TaskArrays,
)
from takeup.edge.solvers.compiled.greedy import METRICS, SAVING, assign_free_subcarriers, grow, kernel_state
from takeup.edge.solvers.compiled.local_search import evaluate_plan, least_seat, regroup, search
from takeup.edge.solvers.compiled.plans import add, clear, copy, insert, remove, reschedule, water_level

# What Python calls: one kernel from tasks to an outcome, for any number of instances ----------------------------------


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
        remove(plans, roles.trial, least_seat(cell, plans, roles.trial))


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


# From instances to the arrays of the kernels, and from an outcome to an answer ----------------------------------------

GroupsByDevice = Mapping[int, Sequence[int]]


def greedy_answer(instance: Instance, metric: int, policy: str) -> Answer:
    """The answer that grows greedily by one of the metrics, which are numbered."""
    outcome = finished_plans([instance], SearchEffort(metric, 0, 0, 0), _starts(instance, []))
    return _answer(instance, outcome, policy)


def searched_answer(instance: Instance, starts: Sequence[GroupsByDevice], effort: SearchEffort, policy: str) -> Answer:
    """The best answer of a search from the greedy plans and these starts; a group without subcarriers is open."""
    return _answer(instance, finished_plans([instance], effort, _starts(instance, starts)), policy)


def finished_plans(
    instances: Sequence[Instance], effort: SearchEffort, starts: InitialPlans | None = None
) -> FinishedPlans:
    """The finished plans of all instances, one after the other."""
    tasks = tasks_of(instances)
    num_devices, num_subcarriers = int(tasks.num_devices.sum()), int(tasks.num_subcarriers.sum())
    outcome = FinishedPlans(
        np.full(num_subcarriers, UNASSIGNED, np.int64),
        np.zeros(num_subcarriers),
        np.full(num_devices, np.nan),
        np.full(num_devices, np.nan),
        np.full(num_devices, np.nan),
        np.zeros(num_devices, np.bool_),
        np.zeros(len(instances), np.int64),
    )
    solve_instances(
        tasks,
        starts or InitialPlans(np.zeros((0, 0), np.bool_), np.zeros((0, 0), np.int64)),
        effort,
        PlanRoles(),
        outcome,
    )
    return outcome


def tasks_of(instances: Sequence[Instance]) -> TaskArrays:
    """All instances in the same arrays. Fresh ones: kernels are compiled for arrays that can be written to."""
    num_devices = np.array([each.num_devices for each in instances], np.int64)
    num_subcarriers = np.array([each.num_subcarriers for each in instances], np.int64)
    bandwidth_hz = np.array([each.radio.bandwidth_hz for each in instances])
    edge_hz = np.array([each.edge_hz for each in instances])
    return TaskArrays(
        num_devices,
        num_subcarriers,
        _joined([each.gain_to_noise.reshape(-1) for each in instances]),
        _joined([each.bits for each in instances]) / np.repeat(bandwidth_hz, num_devices),
        _joined([each.deadlines_s for each in instances]),
        _joined([each.cycles for each in instances]) / np.repeat(edge_hz, num_devices),
        _joined([each.releases_s for each in instances]),
        _joined([each.worth_j for each in instances]),
        np.array([each.radio.max_power_w for each in instances], np.float64),
        np.array([each.radio.circuit_power_w for each in instances], np.float64),
        np.array([each.num_cores for each in instances], np.int64),
    )


def _joined(arrays: list[npt.NDArray[np.float64]]) -> npt.NDArray[np.float64]:
    return np.concatenate(arrays) if arrays else np.zeros(0)


def _starts(instance: Instance, starts: Sequence[GroupsByDevice]) -> InitialPlans:
    wanted = np.zeros((len(starts), instance.num_devices), np.bool_)
    owner = np.full((len(starts), instance.num_subcarriers), UNASSIGNED, np.int64)
    for row, groups in enumerate(starts):
        for device, group in groups.items():
            wanted[row, device] = True
            owner[row, list(group)] = device
    return InitialPlans(wanted, owner)


def _answer(instance: Instance, outcome: FinishedPlans, policy: str) -> Answer:
    offloads = ~np.isnan(outcome.start_s)
    local_j = instance.local_j
    energies_j = np.where(offloads, outcome.spent_j, local_j)
    reasons = np.where(outcome.can_save, np.int8(Reason.CROWDED_OUT), np.int8(Reason.NO_SAVING))
    return Answer(
        policy,
        Allocation(offloads, outcome.owners, outcome.powers_w, outcome.upload_s, outcome.start_s, energies_j),
        float((local_j - energies_j)[offloads].sum()),
        np.where(offloads, np.int8(Reason.OFFLOADS), reasons),
        extra_j=float(instance.values_j[offloads].sum()),
    )
