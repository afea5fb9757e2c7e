"""A sharper bound for one core: only subcarriers have prices, and the turns on the core are the best there are.

At prices for subcarriers alone, every device knows what it gains at most by starting in a slot, and the best turns
(`fast.turns`) say who runs when. The prices and the gains together are a bound on any allocation, and one without
fractions of runs: where few large tasks fit, those make the bound of `generate` weak.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from takeup.edge.model import Instance
from takeup.edge.policies.bounds.fast.turns import best_turns
from takeup.edge.policies.bounds.generate import Pricer
from takeup.edge.policies.bounds.master import Duals, Grid

__all__ = ["turns_bound"]

Floats = npt.NDArray[np.float64]

MOST_NODES = 300_000  # some hundredths of a second
MOST_JOBS = 24  # in the search; others are taken to be in nobody's way


def turns_bound(instance: Instance, grid: Grid, pricer: Pricer, prices_j: Floats, known_j: float) -> float:
    """At least what any allocation is worth, by these prices of subcarriers; infinite if the search is too long.

    `known_j` is what some allocation is worth: below it nothing is looked for.
    """
    assert instance.num_cores == 1, "turns are those of one core"
    offered_j = pricer.offers(Duals(prices_j, np.zeros(len(grid.room_s)))).profits_j
    most_j = np.maximum(0.0, offered_j.max(axis=1, initial=0.0))
    jobs = np.argsort(-most_j, kind="stable")[: min(MOST_JOBS, np.count_nonzero(most_j))]
    jobs = jobs[np.argsort(-instance.deadlines_s[jobs], kind="stable")]
    freely_j = float(prices_j.sum() + most_j.sum() - most_j[jobs].sum())
    offered_j = np.maximum.accumulate(offered_j[jobs], axis=1)  # nobody gains less by starting later
    runs = instance.deadlines_s[jobs], instance.run_s[jobs]
    return freely_j + best_turns(offered_j, grid.edges_s, *runs, max(0.0, known_j - freely_j), MOST_NODES)
