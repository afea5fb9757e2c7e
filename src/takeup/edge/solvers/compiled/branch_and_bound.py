"""Branch and bound over all plans, and the cheapest division of subcarriers among given devices."""

from typing import NamedTuple

import numpy as np

from takeup.core.arrays import Bools, Floats, Ints
from takeup.core.compiled import inner, kernel
from takeup.edge.solvers.compiled.pricing import GroupCosts, group_cost, price_before

# The best groups for given devices with given windows: the least energy for every set of subcarriers they may use -----


@inner
def add_device_costs(
    groups: GroupCosts, device: int, window_s: float, before_j: Floats, used: Ints, after_j: Floats
) -> None:
    """The least energies by mask with one more device, from those without it at the masks that are in use.

    A group is left out if it costs no less without its worst subcarrier, which then has no power.
    """
    after_j[:] = np.inf
    num_ranks = groups.ranked.shape[1]
    costs_j = np.full(len(after_j), np.inf)
    for mask in range(1, len(after_j)):
        cost_j = group_cost(groups, device, mask, window_s)
        costs_j[mask] = cost_j
        if cost_j == np.inf:
            continue
        rank = num_ranks - 1
        while not mask & groups.ranked[device, rank]:
            rank -= 1
        without = mask ^ groups.ranked[device, rank]
        if costs_j[without] <= cost_j:
            continue
        for other in used:
            if not other & mask and before_j[other] + cost_j < after_j[other | mask]:
                after_j[other | mask] = before_j[other] + cost_j


@kernel
def share_subcarriers(groups: GroupCosts, devices: Ints, windows_s: Floats) -> Ints:
    """The masks with which these devices spend least together; zeros if they cannot all upload in their windows."""
    num_masks = groups.shortest_s.shape[1]
    costs_j = np.full((len(devices) + 1, num_masks), np.inf)
    costs_j[0, 0] = 0.0
    masks = np.zeros(len(devices), np.int64)
    for row in range(len(devices)):
        used = np.flatnonzero(costs_j[row] < np.inf)
        add_device_costs(groups, devices[row], windows_s[row], costs_j[row], used, costs_j[row + 1])
    rest = int(np.argmin(costs_j[-1]))
    if costs_j[-1, rest] == np.inf:
        return masks
    for row in range(len(devices) - 1, -1, -1):
        best_j = np.inf
        mask = rest
        while mask > 0:  # every part of the rest
            cost_j = group_cost(groups, devices[row], mask, windows_s[row]) + costs_j[row, rest ^ mask]
            if cost_j < best_j:
                masks[row], best_j = mask, cost_j
            mask = (mask - 1) & rest
        rest ^= masks[row]
    return masks


# Branch and bound over all plans: which devices run when, and over which subcarriers ----------------------------------
#
# How it works. A plan is built backwards in time: the next device ends on the core that is free latest, as late as its
# deadline allows. Every best plan is made in this way by some order, in which ends never rise. A node is such an order
# so far. For it `cost_j[mask]` is the least energy with which its devices share exactly the subcarriers of the mask,
# so the best of all masks is a plan. What may still come is judged at prices for subcarriers and for CPU time before a
# moment: no device can add more than its own profit at these prices, and free resources are worth their price at most.
# Masks that cannot lead to a better plan are pruned, and so is a node without masks.


class SearchTasks(NamedTuple):
    """The devices and cores, as input of the search."""

    due_s: Floats
    run_s: Floats
    release_s: Floats
    worth_j: Floats
    num_cores: int


class PriceBounds(NamedTuple):
    """Prices: of CPU time before every edge, of the subcarriers outside every mask; profits of the devices at them.

    `profits_j[device, slot]` is the most a device gains by a start in this slot or before; never below zero.
    """

    edges_s: Floats
    omega: Floats
    rest_j: Floats
    profits_j: Floats


class _Stack(NamedTuple):
    """The nodes from the root to the present one, one row each."""

    cost_j: Floats
    used: Ints
    num_used: Ints
    device: Ints
    start_s: Floats
    end_s: Floats
    free_s: Floats
    worth_j: Floats
    bound_j: Floats
    order: Ints
    next: Ints


@kernel
def search_plans(
    groups: GroupCosts,
    tasks: SearchTasks,
    judge: PriceBounds,
    known_j: float,
    least_gain: float,
    most_work: int,
    start_s: Floats,
) -> float:
    """What no plan exceeds; `start_s` gets the starts of the best plan, and nan for devices that do not offload.

    It is left alone if no plan is worth more than `known_j` by the share `least_gain`; the bound is then that near.
    Stops after looking at `most_work` pairs of masks; the bound is then what the open nodes promise.
    """
    num_devices = len(tasks.run_s)
    stack = _empty_stack(tasks, groups.shortest_s.shape[1])
    inside = np.zeros(num_devices, np.bool_)
    best_j, open_j = known_j, known_j
    depth, work = 0, 0
    _bound_node(tasks, judge, stack, inside, 0, -np.inf)
    _rank(tasks, stack, inside, 0)
    while depth >= 0:
        enough_j = best_j * (1.0 + least_gain)
        device = stack.order[depth, stack.next[depth]]
        if device < 0 or stack.bound_j[depth] <= enough_j:
            if device >= 0:
                open_j = max(open_j, min(stack.bound_j[depth], enough_j))
            if depth > 0:
                inside[stack.device[depth]] = False
            depth -= 1
            continue
        if work >= most_work:
            for level in range(depth + 1):
                open_j = max(open_j, stack.bound_j[level])
            break
        stack.next[depth] += 1
        if not _push_node(groups, tasks, stack, depth, device):
            continue
        work += stack.num_used[depth] * 4 + stack.cost_j.shape[1]
        depth += 1
        inside[device] = True
        worth_j = stack.worth_j[depth] - stack.cost_j[depth].min()
        if worth_j > best_j:
            best_j = worth_j
            start_s[:] = np.nan
            for level in range(1, depth + 1):
                start_s[stack.device[level]] = stack.start_s[level]
        enough_j = best_j * (1.0 + least_gain)
        open_j = max(open_j, min(enough_j, _bound_node(tasks, judge, stack, inside, depth, enough_j)))
        stack.bound_j[depth] = min(stack.bound_j[depth - 1], stack.bound_j[depth])
        _rank(tasks, stack, inside, depth)
    return max(best_j, open_j)


@inner
def _empty_stack(tasks: SearchTasks, num_masks: int) -> _Stack:
    """The stack with the root node: no device offloads, all resources are free."""
    num_devices, num_bits = len(tasks.run_s), 0
    while 1 << num_bits < num_masks:
        num_bits += 1
    rows = min(num_devices, num_bits) + 1
    stack = _Stack(
        np.full((rows, num_masks), np.inf),
        np.zeros((rows, num_masks), np.int64),
        np.zeros(rows, np.int64),
        np.full(rows, -1),
        np.full(rows, np.inf),
        np.full(rows, np.inf),
        np.full((rows, tasks.num_cores), np.inf),
        np.zeros(rows),
        np.zeros(rows),
        np.full((rows, num_devices + 1), -1),
        np.zeros(rows, np.int64),
    )
    stack.cost_j[0, 0] = 0.0
    return stack


@inner
def _push_node(groups: GroupCosts, tasks: SearchTasks, stack: _Stack, depth: int, device: int) -> bool:
    """Push the child node in which a device runs before all others of the node; False if it cannot."""
    if depth + 1 >= len(stack.device):
        return False
    core = np.argmax(stack.free_s[depth])
    end_s = min(tasks.due_s[device], stack.free_s[depth, core])
    start_s = end_s - tasks.run_s[device]
    if end_s > stack.end_s[depth] or start_s <= tasks.release_s[device]:
        return False
    below, window_s = depth + 1, start_s - tasks.release_s[device]
    used = stack.used[depth, : stack.num_used[depth]]
    add_device_costs(groups, device, window_s, stack.cost_j[depth], used, stack.cost_j[below])
    stack.free_s[below] = stack.free_s[depth]
    stack.free_s[below, core] = start_s
    stack.device[below], stack.start_s[below], stack.end_s[below] = device, start_s, end_s
    stack.worth_j[below] = stack.worth_j[depth] + tasks.worth_j[device]
    return True


@inner
def _bound_node(
    tasks: SearchTasks, judge: PriceBounds, stack: _Stack, inside: Bools, depth: int, enough_j: float
) -> float:
    """Bound a node, and keep only the masks that promise more than enough; the best promise of the others."""
    to_come_j = stack.worth_j[depth]
    for core in range(tasks.num_cores):
        to_come_j += price_before(judge.edges_s, judge.omega, stack.free_s[depth, core])
    free_s = stack.free_s[depth].max()
    for device in range(len(inside)):
        if not inside[device]:
            to_come_j += _profit(tasks, judge, device, free_s)
    count, forgotten_j = 0, -np.inf
    stack.bound_j[depth] = -np.inf
    for mask in range(len(judge.rest_j)):
        if stack.cost_j[depth, mask] == np.inf:
            continue
        bound_j = to_come_j + judge.rest_j[mask] - stack.cost_j[depth, mask]
        if bound_j > enough_j:
            stack.used[depth, count] = mask
            count += 1
            stack.bound_j[depth] = max(stack.bound_j[depth], bound_j)
        else:
            forgotten_j = max(forgotten_j, bound_j)
    stack.num_used[depth] = count
    return forgotten_j


@inner
def _profit(tasks: SearchTasks, judge: PriceBounds, device: int, free_s: float) -> float:
    """What a device adds at most at the prices, if a core is free until then."""
    start_s = min(tasks.due_s[device], free_s) - tasks.run_s[device]
    if start_s <= tasks.release_s[device]:
        return 0.0
    slot = min(int(np.searchsorted(judge.edges_s, start_s)), len(judge.edges_s) - 1)
    return float(judge.profits_j[device, max(slot - 1, 0)])


@inner
def _rank(tasks: SearchTasks, stack: _Stack, inside: Bools, depth: int) -> None:
    """The devices to try below a node, the latest end first; -1 after the last."""
    count, free_s = 0, stack.free_s[depth].max()
    end_s = np.empty(len(inside))
    stack.order[depth] = -1
    stack.next[depth] = 0
    for device in range(len(inside)):
        if not inside[device]:
            stack.order[depth, count] = device
            end_s[count] = min(tasks.due_s[device], free_s)
            count += 1
    ranked = np.argsort(-end_s[:count], kind="mergesort")
    stack.order[depth, :count] = stack.order[depth, :count][ranked]
