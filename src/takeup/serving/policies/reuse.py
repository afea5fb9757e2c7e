"""For how many steps ControlNet residuals may be reused: while their predicted change stays within a bound.

The *change* is the difference of the residuals of two evaluated steps, relative to their norm. It is assumed to grow
linearly with the number of steps. Residuals that oscillate or rotate change more in the first steps and less later: for
an interval longer than the measured one the prediction is then an upper bound; for a shorter one the change may exceed
it, up to the measured change. An interval without evaluation is at most twice as long as the previous distance, so
that residuals that begin to change are noticed.
"""

from __future__ import annotations

from math import isfinite

MAX_GROWTH = 2


def steps_to_reuse(change: float, num_apart: int, bound: float) -> int:
    """How many steps after the later of two evaluations, `num_apart` steps apart, are predicted to stay in `bound`."""
    longest = MAX_GROWTH * num_apart
    if not isfinite(change):
        return 0
    return longest if change * longest <= bound * num_apart else int(bound * num_apart / change)
