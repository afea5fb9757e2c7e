"""For how many steps residuals of ControlNets may be used again: while they are predicted to change little enough.

In two steps in which ControlNets were asked, the later residuals are off the earlier ones by a *change*, relative to
their length. It is taken to grow evenly from step to step. That is no less than what they do at an even pace, for a
path that bends, or trembles, brings them less far than a straight one. A stretch without asking is at most twice as
long as the distance before it, so that residuals that begin to move are noticed.
"""

from __future__ import annotations

from math import isfinite

__all__ = ["steps_to_reuse"]

MOST_GROWTH = 2


def steps_to_reuse(change: float, num_apart: int, bound: float) -> int:
    """How many steps after the later of two, so many apart, stay within the bound."""
    longest = MOST_GROWTH * num_apart
    if not isfinite(change):
        return 0
    return longest if change * longest <= bound * num_apart else int(bound * num_apart / change)
