"""The best start threshold with settings for real players, and how much traffic a cell carries."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from takeup.errors import BadInput
from takeup.streaming.advice.qoe import solve_cell
from takeup.streaming.model import Cell, Player
from takeup.streaming.solvers.solution import SolvedChain

Cost = Callable[[SolvedChain, Player], float]

NUM_COARSE = 12
PRECISION_S = 1e-3

# The best start threshold: waiting longer at the start against stalling later -----------------------------------------
#
# How it works. A cost of the threshold q is the expected loss of a viewer in seconds of waiting,
#
#     cost(q) = E[start-up delay](q) + w E[time in stalls](q),
#
# which falls at first (fewer stalls) and rises later (more waiting), with one minimum in practice. A coarse grid of
# thresholds, denser near zero, finds its basin, a bounded scalar search the minimum in it. The chain is solved once.


def waiting_cost(per_stalled_s: float) -> Cost:
    """Seconds of start-up delay plus `per_stalled_s` for every second in stalls."""
    check_stall_cost(per_stalled_s)

    def cost(solution: SolvedChain, player: Player) -> float:
        answer = solution.answer(player)
        return answer.startup_s.value + per_stalled_s * answer.stall_s.value

    return cost


def check_stall_cost(per_stalled_s: float) -> None:
    """Refuse a senseless weight of a second in stalls."""
    if not 0 <= per_stalled_s < np.inf:
        raise BadInput(f"the cost of a second in stalls is {per_stalled_s}; give a finite number, zero or more")


def best_threshold(
    solution: SolvedChain,
    cost: Cost,
    most_s: float = 60.0,
    least_s: float = 0.0,
    resume_s: float | None = None,
    goal_s: float = np.inf,
) -> Player:
    """The player with the start threshold of least cost from `least_s` to `most_s`; it resumes there unless given."""
    if not 0 <= least_s < most_s < np.inf:
        raise BadInput(f"thresholds from {least_s} to {most_s} s are no range; give 0 <= least_s < most_s")

    def of(start_s: float) -> float:
        return cost(solution, Player(start_s, resume_s, goal_s))

    grid = (least_s + (most_s - least_s) * np.linspace(0, 1, NUM_COARSE) ** 2).tolist()
    costs = [of(start_s) for start_s in grid]
    place = int(np.argmin(costs))
    from scipy.optimize import minimize_scalar  # a heavy import that a prediction does not need

    bounds = (grid[max(place - 1, 0)], grid[min(place + 1, len(grid) - 1)])
    found = minimize_scalar(of, bounds=bounds, method="bounded", options={"xatol": PRECISION_S})
    return Player(float(found.x) if found.fun < costs[place] else grid[place], resume_s, goal_s)


# How much traffic a cell carries, how much capacity it needs, how many users to admit, for a target of stalls ---------
#
# How it works. The probability of a stall rises with arrivals and admitted users and falls with capacity and the start
# threshold; the start-up delay rises with the threshold. So every limit is the end of an interval on which the target
# holds, found by bisection on an oracle that takes a millisecond. With few admitted users the target may
# hold for any load: the share of stalls has a limit below 1 when the cell is always full.

PRECISION = 1e-6  # of the answer, relative
HARDEST_LOAD = 1e3  # times the capacity; more arrivals than this change nothing any more


@dataclass(frozen=True, slots=True)
class StallTarget:
    """What viewers shall experience at worst: the share of videos that stall."""

    stall_probability: float

    def __post_init__(self) -> None:
        if not 0 < self.stall_probability < 1:
            raise BadInput(f"the target for stalls is {self.stall_probability}; give a share between 0 and 1")

    def holds(self, cell: Cell, player: Player) -> bool:
        """Whether videos of this cell stall seldom enough."""
        return solve_cell(cell, player).stall_probability.value <= self.stall_probability


def max_arrivals(cell: Cell, player: Player, target: StallTarget) -> float:
    """The most arrivals per second, `inf` if the limit on users alone keeps the target."""

    def holds(arrivals_per_s: float) -> bool:
        return target.holds(replace(cell, arrivals_per_s=arrivals_per_s), player)

    service_per_s = cell.speed / cell.mean_video_s
    if holds(HARDEST_LOAD * service_per_s):
        return float("inf")
    low = 1e-6 * service_per_s
    if not holds(low):
        raise BadInput(_unattainable(target, "even a video alone in the cell stalls more often", "add capacity"))
    return _bisect_limit(holds, low, HARDEST_LOAD * service_per_s)


def min_capacity(cell: Cell, player: Player, target: StallTarget) -> float:
    """The least capacity in bit/s."""

    def fails(capacity_bps: float) -> bool:
        return not target.holds(replace(cell, capacity_bps=capacity_bps), player)

    low, high = 1e-6 * cell.bitrate_bps, 1e9 * cell.bitrate_bps
    if fails(high):
        raise BadInput(_unattainable(target, "no capacity is enough", "raise the start threshold"))
    return _bisect_limit(fails, low, high, give_high=True) if fails(low) else 0.0


def max_admission(cell: Cell, player: Player, target: StallTarget, most: int = 200) -> int:
    """The most users to admit at a time, up to `most`."""

    def holds(max_users: int) -> bool:
        return target.holds(replace(cell, max_users=max_users), player)

    if not holds(1):
        raise BadInput(_unattainable(target, "even one user at a time stalls more often", "add capacity"))
    low, high = 1, most + 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low


def _bisect_limit(holds: Callable[[float], bool], low: float, high: float, give_high: bool = False) -> float:
    """Where `holds` changes from true at `low` to false at `high`; the requested end."""
    while high - low > PRECISION * high:
        middle = (low * high) ** 0.5 if low > 0 and high > 2 * low else (low + high) / 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return high if give_high else low


def _unattainable(target: StallTarget, found: str, advice: str) -> str:
    return f"{target.stall_probability:g} of videos with a stall cannot be reached: {found}; {advice}"
