"""QoE of a whole cell: start-up and stalls averaged over its classes of views, and the mean opinion score (MOS)."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

import numpy as np

from takeup.core.arrays import Floats
from takeup.errors import BadInput
from takeup.streaming.chains import chain_of, impatient_chain
from takeup.streaming.model import Cell, Chain, Estimate, Player, QoeMetrics
from takeup.streaming.solvers.fluid import DoublingSolver
from takeup.streaming.solvers.solution import ChainSolver, SolvedChain

BEST = 4.85
STARTUP_SCALE_S, STARTUP_POWER = 1.532, 0.0932
STALL_SCALE, STALL_POWER, STALL_LENGTH_S = 1.352, 0.3916, 5.0
MOST_STALLS, TINY = 30, 1e-300  # more stalls change the score no more

# The mean opinion score of a session, from 1 (bad) to 5 (excellent): an open formula, and the standard for comparison
#
# How it works. An open surrogate with the shape that subjective tests show: the first seconds of start-up hurt most,
# stalls hurt far more than start-up, and each further one a little less. With w the start-up delay, N the number of
# stalls and S their total time, all in seconds,
#
#     MOS = 1 + 3.85 (1 + w / 1.532)^-0.0932 (1 + x / 1.352)^-0.3916,       x = (N + S / 5 s) / 2.
#
# The start-up part goes through, and the stall part is the minimax fit to, what ITU-T P.1203 says about a session of
# 60 s at 720p on a phone: 4.85 without a wait, 4.48 and 4.19 after 3 and 10 s of start-up, and 3.86, 3.38, 3.26 after
# 3 s and one, two, three stalls of 5 s. It stays within 0.06 of all of them. How much of the damage of a stall is its
# number and how much its length was not in these points; half of each is a choice.


def mos(startup_s: float, num_stalls: float, stall_s: float) -> float:
    """The score of a session with this start-up delay, number of stalls and total time in stalls."""
    if not (startup_s >= 0 and num_stalls >= 0 and stall_s >= 0):
        raise BadInput(f"a session with {startup_s} s, {num_stalls} stalls, {stall_s} s cannot be; give zero or more")
    patience = (1 + startup_s / STARTUP_SCALE_S) ** -STARTUP_POWER
    damage = (num_stalls + stall_s / STALL_LENGTH_S) / 2
    return float(1 + (BEST - 1) * patience * (1 + damage / STALL_SCALE) ** -STALL_POWER)


def mean_mos(answer: QoeMetrics) -> float:
    """The score of the mean session, where the law of the number of stalls is not known."""
    return mos(answer.startup_s.value, answer.num_stalls.value, answer.stall_s.value)


def expected_mos(solution: SolvedChain, player: Player) -> float:
    """The mean score over the law of the number of stalls, with the mean start-up delay and the mean stall."""
    answer = solution.answer(player)
    stall_s = answer.stall_s.value / max(answer.num_stalls.value, TINY)
    law = solution.stall_law(player, MOST_STALLS).tolist()
    return float(sum(share * mos(answer.startup_s.value, num, num * stall_s) for num, share in enumerate(law)))


# The answer for a cell as a whole: the right solver for its chain, averaged over its classes of views -----------------


MANY_STATES = 400


def exact_solver(chain: Chain, *, is_steady: bool = True) -> ChainSolver:
    """`doubling`, which needs numpy only, `sparse` for many states at a steady capacity, `diffusion` for variance."""
    if chain.variance.any():
        from takeup.streaming.solvers.diffusion import DiffusionSolver

        return DiffusionSolver()
    if chain.num_states <= MANY_STATES or chain.give_up.any() or not is_steady:
        return DoublingSolver()
    from takeup.streaming.solvers.sparse import SparseSolver

    return SparseSolver()


def solve_cell(cell: Cell, player: Player) -> QoeMetrics:
    """What the viewers of all classes experience on average."""
    return SolvedCell(cell).answer(player)


MOST_ROUNDS, SETTLED = 200, 1e-9


class ImpatientCell:
    """A cell whose viewers all leave at a rate while they wait; for each of them the others are a mean field."""

    def __init__(self, cell: Cell, give_up_per_s: float) -> None:
        self.cell, self.give_up_per_s = cell, give_up_per_s

    def answer(self, player: Player) -> QoeMetrics:
        """What the viewers experience, by rounds until the share of users that wait settles."""
        waiting = np.zeros(self.cell.max_users)
        for _ in range(MOST_ROUNDS):
            chain = impatient_chain(self.cell, self.give_up_per_s, waiting)
            solution = DoublingSolver().solution(chain)
            share = solution.waiting_share(player)
            if np.abs(share - waiting).max() < SETTLED:
                break
            waiting = (waiting + share) / 2
        return solution.answer(player)

    def mos(self, player: Player) -> float:
        """The mean opinion score of the mean session."""
        return mean_mos(self.answer(player))

    def stall_curve(self, step_s: float, num: int, _: float) -> Floats:
        """P(at least one stall) for the start thresholds 0, `step_s`, 2 `step_s` .., `num` of them."""
        players = [Player(place * step_s, max(place * step_s, step_s / 10)) for place in range(num)]
        return np.array([self.answer(player).stall_probability.value for player in players])


MOST_STATES, MOST_QUICK_STATES = 4_000, 500


def num_states(cell: Cell) -> int:
    """How many states the chain of one of its videos has."""
    levels = 1 if cell.capacity is None else len(cell.capacity.levels)
    return levels * math.comb(cell.max_users - 1 + len(cell.views), len(cell.views))


def check_quick(cell: Cell) -> None:
    """Refuse several classes of videos where one answer takes seconds, for questions that need a hundred of them."""
    if (num := num_states(cell)) > MOST_QUICK_STATES and len(cell.views) > 1:
        found = f"{len(cell.views)} classes of up to {cell.max_users} users make {num} states"
        raise BadInput(f"{found}, too many for this; give fewer classes or users, or ask 'takeup streaming predict'")


class SolvedCell:
    """A cell with every class of its views solved once, for many players; `tick` is called after each class."""

    def __init__(self, cell: Cell, tick: Callable[[], None] = lambda: None) -> None:
        if (num := num_states(cell)) > MOST_STATES:
            found = f"the cell has {num} states, more than the {MOST_STATES} that are solved"
            raise BadInput(f"{found}; give fewer classes or users, or ask 'takeup streaming simulate cell'")
        self.shares = [view.share for view in cell.views]
        self.solutions: list[SolvedChain] = []
        for tagged in range(len(cell.views)):
            chain = chain_of(cell, tagged)
            self.solutions.append(exact_solver(chain, is_steady=cell.capacity is None).solution(chain))
            tick()

    def answer(self, player: Player) -> QoeMetrics:
        """What the viewers of all classes experience on average."""
        answers = [solution.answer(player) for solution in self.solutions]
        names = [item.name for item in fields(QoeMetrics) if item.name not in {"source", "num_videos"}]
        values = {name: [getattr(answer, name).value for answer in answers] for name in names}
        means: dict[str, Any] = {name: Estimate(self._mean(each)) for name, each in values.items()}
        return replace(answers[0], **means)

    def mos(self, player: Player) -> float:
        """The mean opinion score over all classes."""
        return self._mean([expected_mos(solution, player) for solution in self.solutions])

    def stall_curve(self, step_s: float, num: int, goal_s: float = np.inf) -> Floats:
        """P(at least one stall) for the start thresholds 0, `step_s`, 2 `step_s` .., `num` of them."""
        curves = [solution.stall_curve(step_s, num, goal_s) for solution in self.solutions]
        return np.asarray(np.array(self.shares) @ np.array(curves), dtype=np.float64)

    def _mean(self, values: list[float]) -> float:
        return sum(share * value for share, value in zip(self.shares, values, strict=True))
