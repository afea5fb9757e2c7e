"""The answer for a cell as a whole: the right solver for its chain, averaged over its classes of views."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from takeup.core.arrays import Floats
from takeup.streaming.chains import chain_of
from takeup.streaming.model import Cell, Chain, Estimate, Player, QoeMetrics
from takeup.streaming.policies.doubling import DoublingSolver
from takeup.streaming.policies.mos import expected_mos
from takeup.streaming.policies.solution import Solution

if TYPE_CHECKING:
    from takeup.streaming.policies.diffusion import DiffusionSolver


def exact_solver(chain: Chain) -> DoublingSolver | DiffusionSolver:
    """`doubling`, which needs numpy only, or `diffusion` if the chain has variance."""
    if not chain.variance.any():
        return DoublingSolver()
    from takeup.streaming.policies.diffusion import DiffusionSolver

    return DiffusionSolver()


def solve_cell(cell: Cell, player: Player) -> QoeMetrics:
    """What the viewers of all classes experience on average."""
    return SolvedCell(cell).answer(player)


class SolvedCell:
    """A cell with every class of its views solved once, for many players."""

    def __init__(self, cell: Cell) -> None:
        chains = [chain_of(cell, tagged) for tagged in range(len(cell.views))]
        self.shares = [view.share for view in cell.views]
        self.solutions: list[Solution] = [exact_solver(chain).solution(chain) for chain in chains]

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

    def stall_curve(self, step_s: float, num: int) -> Floats:
        """P(at least one stall) for the start thresholds 0, `step_s`, 2 `step_s` .., `num` of them."""
        curves = [solution.stall_curve(step_s, num) for solution in self.solutions]
        return np.asarray(np.array(self.shares) @ np.array(curves), dtype=np.float64)

    def _mean(self, values: list[float]) -> float:
        return sum(share * value for share, value in zip(self.shares, values, strict=True))
