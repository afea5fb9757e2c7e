"""The safety coefficient: smaller after broken promises, larger after quiet hours in which spot jobs wait.

Duan et al., ASPLOS 2026, on the spot quota allocator. With the rate e of broken promises and its goal e* = 1 - p, the
coefficient is multiplied by e*/e when e >= 1.5 e*, and by 1.5 - e/e* when e <= 0.5 e* while a spot job has waited for
an hour.

How it works. Every promise is evidence once: what led to a correction is forgotten. Until there is enough of it,
evidence is weighed against two broken promises' worth of keeping the goal exactly, so that one eviction alone changes
nothing. A period in which spot jobs wait and none runs says that the quota is too small, but not that it may exceed
the forecast.
"""

from __future__ import annotations

from dataclasses import dataclass

from takeup.errors import BadInput

PERIOD_S = 3600.0
WINDOW_S = 4 * 3600.0
LONG_WAIT_S = 3600.0
LEAST, MOST = 0.25, 4.0  # evidence alone decides in between; a narrow range would leave a careful forecast uncorrected
NUM_DOUBTED = 2.0  # broken promises that chance may explain


@dataclass(frozen=True, slots=True)
class Goal:
    """The share of promises to keep."""

    probability: float = 0.9

    def __post_init__(self) -> None:
        if not 0.0 < self.probability < 1.0:
            raise BadInput(f"promises cannot be kept with probability {self.probability:g}; choose one between 0 and 1")

    @property
    def broken_share(self) -> float:
        """How many promises may be broken."""
        return 1.0 - self.probability


@dataclass(frozen=True, slots=True)
class Feedback:
    """The coefficient, and the evidence since it was last corrected or weighed."""

    coefficient: float = 1.0
    num_kept: int = 0
    num_broken: int = 0
    since_s: float | None = None

    def broken_share(self, goal: Goal) -> float:
        """The rate of broken promises, in doubt the goal."""
        weight = NUM_DOUBTED / goal.broken_share
        return (self.num_broken + NUM_DOUBTED) / (self.num_kept + self.num_broken + weight)


def corrected(
    before: Feedback, goal: Goal, now_s: float, num_kept: int, num_broken: int, longest_wait_s: float
) -> Feedback:
    """The coefficient after new evidence; `num_kept` and `num_broken` count what happened since the last call."""
    since_s = now_s if before.since_s is None else before.since_s
    after = Feedback(before.coefficient, before.num_kept + num_kept, before.num_broken + num_broken, since_s)
    if num_broken and after.broken_share(goal) >= 1.5 * goal.broken_share:
        return _clean(after.coefficient * goal.broken_share / after.broken_share(goal), now_s)
    if now_s - since_s < PERIOD_S:
        return after
    if longest_wait_s > LONG_WAIT_S and (growth := _growth(after, goal)) > 1.0:
        return _clean(after.coefficient * growth, now_s)
    return _clean(after.coefficient, now_s) if now_s - since_s >= WINDOW_S else after


def _growth(feedback: Feedback, goal: Goal) -> float:
    num = feedback.num_kept + feedback.num_broken
    if num == 0:
        return min(1.5, max(1.0, 1.0 / feedback.coefficient))
    excess = feedback.num_broken / num / goal.broken_share
    return 1.5 - excess if excess <= 0.5 else 1.0


def _clean(coefficient: float, now_s: float) -> Feedback:
    return Feedback(min(max(coefficient, LEAST), MOST), since_s=now_s)
