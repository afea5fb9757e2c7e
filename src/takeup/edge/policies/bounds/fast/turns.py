"""The optimal schedule of one core at given subcarrier prices: which jobs offload, and when each run starts.

How it works. The later a run starts, the longer its upload may take and the more it gains. So runs are placed from the
last to the first, each as late as the one after it and its own deadline allow. All orders are searched, except those
that cannot beat the best so far even if all other runs were concurrent, and those dominated by an earlier order of the
same set of runs (no more gained, no more time left).
"""

from __future__ import annotations

import numpy as np

from takeup.core.arrays import Floats
from takeup.core.compiled import inner, kernel

NUM_KNOWN = 1 << 18  # sets of runs that are remembered


@inner
def _slot_before(edges_s: Floats, due_s: float, free_s: float, run_s: float) -> int:
    """The slot of the latest start before both moments; -1 if that is before everything."""
    start_s = min(due_s, free_s) - run_s
    return (
        -1 if start_s < edges_s[0] else min(int(np.searchsorted(edges_s, start_s, side="right")), len(edges_s) - 1) - 1
    )


@inner
def _gain_without_competition(
    profits_j: Floats, edges_s: Floats, due_s: Floats, run_s: Floats, placed: int, free_s: float
) -> float:
    """What the remaining runs would gain if they did not compete for the core."""
    total_j = 0.0
    for job in range(len(due_s)):
        if not placed >> job & 1:
            slot = _slot_before(edges_s, due_s[job], free_s, run_s[job])
            if slot >= 0 and profits_j[job, slot] > 0:
                total_j += profits_j[job, slot]
    return total_j


@kernel
def best_single_core_schedule(
    profits_j: Floats, edges_s: Floats, due_s: Floats, run_s: Floats, least_j: float, most_nodes: int
) -> float:
    """The most that can be gained, or `least_j` if that is more; infinite if the node limit is reached.

    `profits_j` is by job and slot, and must not fall from one slot to the next while a job can still be done in time.
    """
    num = len(due_s)
    free_s, gained_j = np.full(num + 1, edges_s[-1]), np.zeros(num + 1)
    upcoming, chosen = np.zeros(num + 1, np.int64), np.zeros(num + 1, np.int64)
    known, known_s, known_j = np.full(NUM_KNOWN, -1), np.zeros(NUM_KNOWN), np.zeros(NUM_KNOWN)
    best_j, placed, depth, num_nodes, num_known = least_j, 0, 0, 0, 0
    while depth >= 0:
        if upcoming[depth] == 0:
            num_nodes += 1
            if num_nodes > most_nodes:
                return np.inf
            best_j = max(best_j, gained_j[depth])
            hopeless = (
                gained_j[depth] + _gain_without_competition(profits_j, edges_s, due_s, run_s, placed, free_s[depth])
                <= best_j
            )
            place = (placed * 2654435761) % NUM_KNOWN
            while known[place] not in (-1, placed):
                place = (place + 1) % NUM_KNOWN
            if known[place] == placed:
                if known_s[place] >= free_s[depth] and known_j[place] >= gained_j[depth]:
                    hopeless = True
                elif known_s[place] <= free_s[depth] and known_j[place] <= gained_j[depth]:
                    known_s[place], known_j[place] = free_s[depth], gained_j[depth]
            elif 2 * num_known < NUM_KNOWN:
                known[place], known_s[place], known_j[place] = placed, free_s[depth], gained_j[depth]
                num_known += 1
            if hopeless:
                upcoming[depth] = num
        job = upcoming[depth]
        if job == num:
            depth -= 1
            placed ^= 1 << chosen[max(depth, 0)]
            continue
        upcoming[depth] += 1
        slot = -1 if placed >> job & 1 else _slot_before(edges_s, due_s[job], free_s[depth], run_s[job])
        if slot >= 0 and profits_j[job, slot] > 0:
            chosen[depth] = job
            placed ^= 1 << job
            depth += 1
            free_s[depth] = min(due_s[job], free_s[depth - 1]) - run_s[job]
            gained_j[depth] = gained_j[depth - 1] + profits_j[job, slot]
            upcoming[depth] = 0
    return best_j
