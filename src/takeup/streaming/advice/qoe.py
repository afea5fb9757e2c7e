"""QoE of a whole cell: start-up and stalls averaged over its classes of views, and the mean opinion score (MOS)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from importlib import import_module
from typing import TYPE_CHECKING, Any

import numpy as np

from takeup.core.arrays import Floats
from takeup.errors import BadInput, MissingEngine
from takeup.streaming.chains import chain_of
from takeup.streaming.model import Cell, Chain, Estimate, Player, QoeMetrics
from takeup.streaming.solvers.fluid import DoublingSolver
from takeup.streaming.solvers.solution import Solution

if TYPE_CHECKING:
    from takeup.streaming.solvers.diffusion import DiffusionSolver

BEST = 4.85
STARTUP_SCALE_S, STARTUP_POWER = 1.532, 0.0932
STALL_SCALE, STALL_POWER, STALL_LENGTH_S = 1.352, 0.3916, 5.0
MOST_STALLS = 30  # more of them change the score no more

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
#
# P.1203 itself is used if the package `itu_p1203` is installed. Its licence allows research only, so it is not ours to
# ship. Its scores depend on where stalls are and on the picture too.


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


def expected_mos(solution: Solution, player: Player) -> float:
    """The mean score over the law of the number of stalls, with the mean start-up delay and the mean stall."""
    counts = solution.counts(player)
    startup_s = solution.mean_prefetch(player.start_s)
    stall_s = counts.stall_s / counts.mean if counts.mean > 0 else 0.0
    law = counts.law(MOST_STALLS)
    return float(sum(share * mos(startup_s, num, num * stall_s) for num, share in enumerate(law)))


def p1203_mos(startup_s: float, stalls: Sequence[tuple[float, float]], length_s: float, bitrate_bps: float) -> float:
    """The score of ITU-T P.1203 (mode 0) for a 720p session on a phone; stalls are (position, seconds) in the media.

    Needs the package `itu_p1203`, which is for research only.
    """
    if any(not 0 < position <= length_s or seconds <= 0 for position, seconds in stalls):
        raise BadInput(f"stalls must lie inside the {length_s:g} s of the video and last longer than zero seconds")
    try:
        package: Any = import_module("itu_p1203")
    except ImportError as error:
        message = "the score P.1203 needs the package 'itu_p1203', which is free for research only"
        raise MissingEngine(f"{message}\n\nhint: install it from github.com/itu-p1203/itu-p1203") from error
    session = _p1203_session(startup_s, stalls, length_s, bitrate_bps)
    return float(package.P1203Standalone(session).calculate_complete()["O46"])


def _p1203_session(
    startup_s: float, stalls: Sequence[tuple[float, float]], length_s: float, bitrate_bps: float
) -> dict[str, object]:
    picture = {"codec": "h264", "fps": 25.0, "resolution": "1280x720"}
    segment = {"bitrate": bitrate_bps / 1000, "duration": length_s, "start": 0, **picture}
    sound = {"bitrate": 128, "codec": "aaclc", "duration": length_s, "start": 0}
    waits = [[0, startup_s]] if startup_s > 0 else []
    return {
        "I11": {"segments": [sound], "streamId": 1},
        "I13": {"segments": [segment], "streamId": 1},
        "I23": {"stalling": [*waits, *map(list, stalls)], "streamId": 1},
        "IGen": {"device": "mobile", "displaySize": "1280x720", "viewingDistance": "150cm"},
    }


# The answer for a cell as a whole: the right solver for its chain, averaged over its classes of views -----------------


def exact_solver(chain: Chain) -> DoublingSolver | DiffusionSolver:
    """`doubling`, which needs numpy only, or `diffusion` if the chain has variance."""
    if not chain.variance.any():
        return DoublingSolver()
    from takeup.streaming.solvers.diffusion import DiffusionSolver

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
