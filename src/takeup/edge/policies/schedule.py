"""Turns on the CPU: as late as possible in the order of deadlines, or as early as uploads allow.

As late as possible is best for a given order: every start is the latest it can be, and a later start means a longer and
cheaper upload. The order of deadlines is the right one whenever uploads are short against the time there is.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

__all__ = ["latest_starts", "run_in_order", "starts_with_one_more"]

Floats = npt.NDArray[np.float64]


def latest_starts(deadlines_s: Floats, run_s: Floats) -> Floats:
    """The latest start of every task, in the order of their deadlines; below zero where they do not fit."""
    starts_s = np.empty(len(run_s))
    next_s = np.inf
    for task in np.argsort(deadlines_s, kind="stable")[::-1].tolist():
        next_s = starts_s[task] = min(float(deadlines_s[task]), next_s) - float(run_s[task])
    return starts_s


def starts_with_one_more(
    deadlines_s: Floats, run_s: Floats, new_deadlines_s: Floats, new_run_s: Floats
) -> tuple[Floats, Floats]:
    """For every newcomer, its own latest start and those of the others (one row each) if it alone joined them."""
    newcomer_s = np.full(len(new_run_s), np.nan)
    others_s = np.empty((len(new_run_s), len(run_s)))
    next_s = np.full(len(new_run_s), np.inf)
    waiting = np.ones(len(new_run_s), np.bool_)
    for task in np.argsort(deadlines_s, kind="stable")[::-1].tolist():
        turn = waiting & (new_deadlines_s >= deadlines_s[task])
        newcomer_s[turn] = next_s[turn] = np.minimum(new_deadlines_s, next_s)[turn] - new_run_s[turn]
        waiting &= ~turn
        next_s = others_s[:, task] = np.minimum(deadlines_s[task], next_s) - run_s[task]
    newcomer_s[waiting] = np.minimum(new_deadlines_s, next_s)[waiting] - new_run_s[waiting]
    return newcomer_s, others_s


def run_in_order(uploads_s: Floats, deadlines_s: Floats, run_s: Floats) -> Floats:
    """Starts in the order of deadlines, each as early as its upload allows; nan for tasks that would be late."""
    starts_s = np.full(len(run_s), np.nan)
    free_s = 0.0
    for task in np.argsort(deadlines_s, kind="stable").tolist():
        start_s = max(free_s, float(uploads_s[task]))
        if start_s + run_s[task] <= deadlines_s[task]:
            starts_s[task] = start_s
            free_s = start_s + float(run_s[task])
    return starts_s
