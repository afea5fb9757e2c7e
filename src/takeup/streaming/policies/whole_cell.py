"""The answer for a cell as a whole: the right solver for its chain, averaged over its classes of views."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

from takeup.streaming.chains import chain_of
from takeup.streaming.model import Answer, Cell, Chain, Estimate, Player
from takeup.streaming.policies.diffusion import DiffusionSolver
from takeup.streaming.policies.riccati import RiccatiSolver

__all__ = ["exact_solver", "solve_cell"]


def exact_solver(chain: Chain) -> RiccatiSolver | DiffusionSolver:
    """`riccati`, or `diffusion` if the chain has variance."""
    return DiffusionSolver() if chain.variance.any() else RiccatiSolver()


def solve_cell(cell: Cell, player: Player) -> Answer:
    """What the viewers of all classes experience on average."""
    chains = [chain_of(cell, tagged) for tagged in range(len(cell.views))]
    answers = [exact_solver(chain).solve(chain, player) for chain in chains]
    names = [item.name for item in fields(Answer) if item.name not in {"source", "num_videos"}]
    means: dict[str, Any] = {name: Estimate(sum(_weighted(cell, answers, name))) for name in names}
    return replace(answers[0], **means)


def _weighted(cell: Cell, answers: list[Answer], name: str) -> list[float]:
    return [view.share * getattr(answer, name).value for view, answer in zip(cell.views, answers, strict=True)]
