"""Schedules of the cores: as late as possible in the order of deadlines, or as early as uploads allow.

As late as possible is best for a given order: every start is the latest it can be, and a later start means a longer and
cheaper upload. The order of deadlines is the right one whenever uploads are short against the time there is.
"""

from __future__ import annotations

import numpy as np

from takeup.core.arrays import Floats, Ints


def latest_starts(deadlines_s: Floats, run_s: Floats, num_cores: int = 1) -> Floats:
    """The latest start of every task, in the order of their deadlines; below zero where they do not fit."""
    none = np.zeros(0)
    starts_s: Floats = starts_with_one_more(deadlines_s, run_s, none, none, num_cores, num_plans=1)[1][0]
    return starts_s


def starts_with_one_more(
    deadlines_s: Floats,
    run_s: Floats,
    new_deadlines_s: Floats,
    new_run_s: Floats,
    num_cores: int = 1,
    num_plans: int | None = None,
) -> tuple[Floats, Floats]:
    """For every newcomer, its own latest start and those of the others (one row each) if it alone joined them.

    Backwards in time, a task takes the core on which it can run latest. Without newcomers, `num_plans` rows are alike.
    """
    num_plans = len(new_run_s) if num_plans is None else num_plans
    newcomer_s = np.full(len(new_run_s), np.nan)
    others_s = np.empty((num_plans, len(run_s)))
    cores = _Cores(num_plans, num_cores)
    waiting = np.ones(len(new_run_s), np.bool_)
    for task in np.argsort(deadlines_s, kind="stable")[::-1].tolist():
        turn = np.flatnonzero(waiting & (new_deadlines_s >= deadlines_s[task]))
        newcomer_s[turn] = cores.take(turn, new_deadlines_s[turn], new_run_s[turn])
        waiting[turn] = False
        others_s[:, task] = cores.take(cores.rows, deadlines_s[task], run_s[task])
    last = np.flatnonzero(waiting)
    newcomer_s[last] = cores.take(last, new_deadlines_s[last], new_run_s[last])
    return newcomer_s, others_s


class _Cores:
    """When the cores of several plans are taken from, seen backwards in time."""

    def __init__(self, num_plans: int, num_cores: int) -> None:
        self._taken_s = np.full((num_plans, num_cores), np.inf)
        self.rows = np.arange(num_plans)

    def take(self, rows: Ints, due_s: Floats, run_s: Floats) -> Floats:
        """Run a task in each of these plans, as late as possible; when it starts."""
        core = np.argmax(self._taken_s[rows], axis=1)
        start_s: Floats = np.minimum(due_s, self._taken_s[rows, core]) - run_s
        self._taken_s[rows, core] = start_s
        return start_s


def run_in_order(uploads_s: Floats, deadlines_s: Floats, run_s: Floats, num_cores: int = 1) -> Floats:
    """Starts in the order of deadlines, each as early as its upload allows; nan for tasks that would be late."""
    starts_s = np.full(len(run_s), np.nan)
    free_s = np.zeros(num_cores)
    for task in np.argsort(deadlines_s, kind="stable").tolist():
        core = int(np.argmin(free_s))
        start_s = max(float(free_s[core]), float(uploads_s[task]))
        if start_s + run_s[task] <= deadlines_s[task]:
            starts_s[task] = start_s
            free_s[core] = start_s + float(run_s[task])
    return starts_s
