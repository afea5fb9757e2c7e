"""For how many steps residuals of ControlNets may be used again: while they are predicted to change little enough.

In two steps in which ControlNets were asked, the later residuals are off the earlier ones by a *change*, relative to
their length. It is taken to grow evenly from step to step. Residuals that tremble, or turn, change more in their first
steps and less later: a longer stretch than the measured one then stays below what is predicted, a shorter one may be
above it, up to the measured change. A stretch without asking is at most twice as long as the distance before
it, so that residuals that begin to move are noticed.
"""

from __future__ import annotations

from math import isfinite

__all__ = ["steps_to_reuse"]

MOST_GROWTH = 2


def steps_to_reuse(change: float, num_apart: int, bound: float) -> int:
    """How many steps after the later of two, so many apart, are predicted to stay within the bound."""
    longest = MOST_GROWTH * num_apart
    if not isfinite(change):
        return 0
    return longest if change * longest <= bound * num_apart else int(bound * num_apart / change)
