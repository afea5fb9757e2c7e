"""A bound from whole schedules of a core: at prices of subcarriers and devices, no core earns more than its best one.

How it works. Fractions of runs make the bound of `dual` weak where a core has time for few tasks. Here every core has
a schedule of whole runs. A device has a price, so that several schedules with the same device pay for it; the prices of
subcarriers and devices, and the best schedule times the number of cores, bound any plan.

The later a run starts, the longer its upload may take and the more it gains. So runs are placed from the last to the
first, each as late as the one after it and its own deadline allow. A table over time has what a core can earn before a
moment if tasks may repeat; a search among schedules without repetition is pruned by it.
"""

from typing import NamedTuple

import numpy as np

from takeup.core.arrays import Floats, Ints
from takeup.core.compiled import inner, kernel
from takeup.edge.solvers.compiled.dual import Options, option_cost
from takeup.edge.solvers.compiled.uplinks import Uplinks, selection

PATIENCE, NEARER = 6, 0.6  # as for the prices in `dual`


class Jobs(NamedTuple):
    """What a device earns at most if it starts in a slot, without its own price; deadlines and runs.

    Prices of devices are at least `least_j`: zero, or -inf for devices that every plan in question has.
    """

    earned_j: Floats
    edges_s: Floats
    due_s: Floats
    run_s: Floats
    least_j: Floats


@kernel
def earnings(up: Uplinks, options: Options, prices: Floats, edges_s: Floats, latest_s: Floats) -> Floats:
    """By device and slot: what a start in the slot gains at most at these prices of subcarriers; zero if nothing."""
    num_devices, num_slots = up.logs.shape[0], len(edges_s) - 1
    earned_j = np.zeros((num_devices, num_slots))
    chosen, group = selection(len(prices)), np.empty(len(prices), np.bool_)
    for device in range(num_devices):
        each = up.cell.devices[device]
        for at in range(options.num[device]):
            if options.floor_j[device, at] >= each.worth_j:
                continue
            cost_j = option_cost(up, options, device, at, prices, each.worth_j, chosen, group)
            gain_j = each.worth_j - max(cost_j, options.floor_j[device, at])
            for slot in range(num_slots - 1, -1, -1):
                limit_s = min(edges_s[slot + 1], latest_s[device]) - each.release_s
                if limit_s < options.begin_s[device, at]:
                    break
                earned_j[device, slot] = max(earned_j[device, slot], gain_j)
    return earned_j


@inner
def _slot_of(jobs: Jobs, job: int, free_s: float) -> int:
    """The slot of the latest start before its deadline and before the core is taken; -1: before everything."""
    start_s = min(jobs.due_s[job], free_s) - jobs.run_s[job]
    slot_s = jobs.edges_s[1] - jobs.edges_s[0]
    if start_s < jobs.edges_s[0]:
        return -1
    return min(int((start_s - jobs.edges_s[0]) / slot_s * (1.0 + 1e-12)), len(jobs.edges_s) - 2)


@inner
def _fill_table(jobs: Jobs, device_j: Floats, table_j: Floats, best: Ints) -> None:
    """What a core that is free until an edge earns at most if tasks may repeat, and its last task (-1: idle)."""
    table_j[0], best[0] = 0.0, -1
    for edge in range(1, len(table_j)):
        table_j[edge], best[edge] = table_j[edge - 1], -1
        for job in range(len(device_j)):
            slot = _slot_of(jobs, job, jobs.edges_s[edge])
            if slot >= 0 and jobs.earned_j[job, slot] > device_j[job]:
                found_j = jobs.earned_j[job, slot] - device_j[job] + table_j[min(slot + 1, edge - 1)]
                if found_j > table_j[edge]:
                    table_j[edge], best[edge] = found_j, job


@inner
def _best_schedule(jobs: Jobs, device_j: Floats, table_j: Floats, best: Ints, most_nodes: int, counts: Floats) -> float:
    """The most a core earns, at least what is known to be possible; `counts` gets how often each job is in it."""
    num, top = len(device_j), len(table_j) - 1
    slot_s = jobs.edges_s[1] - jobs.edges_s[0]
    free_s, earned_j = np.empty(num + 1), np.zeros(num + 1)
    upcoming, chosen, winner = np.zeros(num + 1, np.int64), np.zeros(num + 1, np.int64), np.zeros(num + 1, np.int64)
    placed = np.zeros(num, np.bool_)
    free_s[0] = jobs.edges_s[-1]
    depth, best_j, best_depth, nodes = 0, 0.0, 0, 0
    while depth >= 0:
        job = upcoming[depth]
        if job == num or nodes > most_nodes:
            depth -= 1
            if depth >= 0:
                placed[chosen[depth]] = False
            continue
        upcoming[depth] += 1
        if placed[job]:
            continue
        slot = _slot_of(jobs, job, free_s[depth])
        if slot < 0 or jobs.earned_j[job, slot] <= device_j[job]:
            continue
        here_j = earned_j[depth] + jobs.earned_j[job, slot] - device_j[job]
        start_s = min(jobs.due_s[job], free_s[depth]) - jobs.run_s[job]
        edge = min(top, int((start_s - jobs.edges_s[0]) / slot_s) + 1)
        if here_j + table_j[edge] <= best_j * (1.0 + 1e-9) + 1e-15:
            continue
        nodes += 1
        chosen[depth], placed[job] = job, True
        depth += 1
        free_s[depth], earned_j[depth], upcoming[depth] = start_s, here_j, 0
        if here_j > best_j:
            best_j, best_depth = here_j, depth
            winner[:depth] = chosen[:depth]
    counts[:] = 0.0
    if nodes <= most_nodes:
        for index in range(best_depth):
            counts[winner[index]] += 1.0
        return best_j * (1.0 + 1e-9) + 1e-15
    edge = top  # too many schedules: with repetition
    while edge > 0:
        job = best[edge]
        if job < 0:
            edge -= 1
            continue
        counts[job] += 1.0
        edge = min(_slot_of(jobs, job, jobs.edges_s[edge]) + 1, edge - 1)
    return float(table_j[top])


@kernel
def whole_runs_bound(
    jobs: Jobs, num_cores: int, fixed_j: float, device_j: Floats, known_j: float, num_rounds: int, most_nodes: int
) -> float:
    """The best bound after rounds of better prices of devices; `fixed_j` are all prices of subcarriers."""
    num = len(device_j)
    table_j, best = np.empty(len(jobs.edges_s)), np.empty(len(jobs.edges_s), np.int64)
    counts, direction, best_prices = np.zeros(num), np.zeros(num), device_j.copy()
    least_j, aim_j, stale = np.inf, -1.0, 0
    for _ in range(num_rounds):
        _fill_table(jobs, device_j, table_j, best)
        bound_j = (
            fixed_j + device_j.sum() + num_cores * _best_schedule(jobs, device_j, table_j, best, most_nodes, counts)
        )
        aim_j = 0.5 * (bound_j - known_j) if aim_j < 0.0 else aim_j
        stale += 1
        if bound_j < least_j:
            stale = 0 if least_j - bound_j > 0.1 * aim_j else stale
            least_j = bound_j
            best_prices[:] = device_j
        if stale >= PATIENCE:
            stale, aim_j = 0, aim_j * NEARER
        if least_j <= known_j:
            break
        norm = 0.0
        for job in range(num):
            excess = num_cores * counts[job] - 1.0
            direction[job] = excess + 0.5 * direction[job]
            if device_j[job] <= jobs.least_j[job]:
                direction[job] = max(0.0, direction[job])
            norm += direction[job] ** 2
        if norm <= 0.0:
            break
        step = (bound_j - max(known_j, least_j - aim_j)) / norm
        for job in range(num):
            device_j[job] = max(jobs.least_j[job], device_j[job] + step * direction[job])
    device_j[:] = best_prices
    return least_j
