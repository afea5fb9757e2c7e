"""A second witness for exact optima: the same problem as a constraint program, in whole steps of time.

Rounded one way every solution is a plan, so its worth is no more than the optimum; rounded the other way every plan is
a solution, so its worth is no less. Uploads cost what they cost at best, which is all that is asked of short ones.
"""

from __future__ import annotations

from itertools import combinations
from math import ceil, floor

import numpy as np
from ortools.sat.python import cp_model

from takeup.edge.energy import PrefixGroups
from takeup.edge.model import Instance

STEP_S = 10e-6
JOULES = 1e9  # the program counts in whole nanojoules


def best_worth_j(instance: Instance, *, is_plan: bool) -> float:
    """The best worth of what is certainly a plan, or of what any plan certainly is."""
    up, down = (ceil, floor) if is_plan else (floor, ceil)
    model = cp_model.CpModel()
    chosen: list[tuple[cp_model.IntVar, tuple[int, ...], float]] = []
    turns = []
    for device in range(instance.num_devices):
        due = down(instance.deadlines_s[device] / STEP_S)
        run = up(instance.run_s[device] / STEP_S)
        start = model.new_int_var(0, max(0, due - run), "")
        accepted = model.new_bool_var("")
        turns.append(model.new_optional_interval_var(start, run, start + run, accepted, ""))
        if run > due:
            model.add(accepted == 0)
        groups = []
        for group, least_s, energy_j in _groups(instance, device, is_plan):
            worth_j = instance.worth_j[device] - energy_j
            if worth_j > 0:
                groups.append(model.new_bool_var(""))
                chosen.append((groups[-1], group, worth_j))
                model.add(start >= up(least_s / STEP_S)).only_enforce_if(groups[-1])
        model.add(sum(groups) == accepted)
    model.add_cumulative(turns, [1] * len(turns), instance.num_cores)
    for subcarrier in range(instance.num_subcarriers):
        model.add(sum(choice for choice, group, _ in chosen if subcarrier in group) <= 1)
    model.maximize(sum(round(worth_j * JOULES) * choice for choice, _, worth_j in chosen))
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    assert solver.solve(model) == cp_model.OPTIMAL
    return float(solver.objective_value) / JOULES


def _groups(instance: Instance, device: int, is_plan: bool) -> list[tuple[tuple[int, ...], float, float]]:
    """Every group with the time its upload needs, and what it costs at best."""
    found = []
    for size in range(1, instance.num_subcarriers + 1):
        for group in combinations(range(instance.num_subcarriers), size):
            gains = -np.sort(-instance.gain_to_noise[device, list(group)])
            table = PrefixGroups(gains[None], instance.bits[[device]], instance.radio)
            time_s, energy_j = (float(part[0]) for part in table.whole(instance.deadlines_s[[device]]))
            found.append((group, time_s if is_plan else float(table.shortest_s[0, -1]), energy_j))
    return found
