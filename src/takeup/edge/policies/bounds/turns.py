"""A tighter bound for one core: only subcarriers have prices, and the schedule of the core is optimal.

At prices for subcarriers alone, the most that a device gains by starting in a slot is known, and `fast.turns` finds
the optimal schedule. Prices plus gains bound any allocation, without fractional runs: where few large tasks fit,
fractional runs make the bound of `generate` weak.
"""

from __future__ import annotations

import numpy as np

from takeup.core.arrays import Floats
from takeup.edge.model import Instance
from takeup.edge.policies.bounds.fast.turns import best_single_core_schedule
from takeup.edge.policies.bounds.generate import Pricer
from takeup.edge.policies.bounds.master import Duals, SlotGrid

MOST_NODES = 300_000  # some hundredths of a second
MOST_JOBS = 24  # in the search; the others are assumed not to compete for the core


def single_core_bound(instance: Instance, grid: SlotGrid, pricer: Pricer, prices_j: Floats, known_j: float) -> float:
    """At least what any allocation is worth, by these prices of subcarriers; infinite if the search is too long.

    `known_j` is what some allocation is worth: below it nothing is looked for.
    """
    assert instance.num_cores == 1, "turns are those of one core"
    offered_j = pricer.offers(Duals(prices_j, np.zeros(len(grid.capacity_s)))).profits_j
    most_j = np.maximum(0.0, offered_j.max(axis=1, initial=0.0))
    jobs = np.argsort(-most_j, kind="stable")[: min(MOST_JOBS, np.count_nonzero(most_j))]
    jobs = jobs[np.argsort(-instance.deadlines_s[jobs], kind="stable")]
    freely_j = float(prices_j.sum() + most_j.sum() - most_j[jobs].sum())
    offered_j = np.maximum.accumulate(offered_j[jobs], axis=1)  # no device gains less by starting later
    runs = instance.deadlines_s[jobs], instance.run_s[jobs]
    return freely_j + best_single_core_schedule(
        offered_j, grid.edges_s, *runs, max(0.0, known_j - freely_j), MOST_NODES
    )
