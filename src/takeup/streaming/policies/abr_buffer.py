"""Adaptive bit rate that follows the buffer: the fuller it is, the higher the level. Solved exactly, region by region.

How it works. While playing the buffer moves through the regions of `abr_regions`. While waiting it passes the same
regions from below: their exponentials are multiplied. The other users are those of the chain; `abr_mean_field` finds
the chain of a cell in which they adapt as well.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from takeup.core.arrays import Floats
from takeup.streaming.chains import check_levels
from takeup.streaming.model import Chain, Player, QoeMetrics
from takeup.streaming.policies.abr_regions import Regions
from takeup.streaming.policies.phases import WaitingPhase, WaitOutcome
from takeup.streaming.policies.solution import Solution


@dataclass(frozen=True, slots=True)
class BufferAbrSolver:
    """Exact for a player that takes `ladder_bps[k]` while its buffer is between `levels_s[k - 1]` and `levels_s[k]`.

    The chain describes the cell for videos of `bitrate_bps`; its variance is not used.
    """

    ladder_bps: Sequence[float]
    levels_s: Sequence[float]
    bitrate_bps: float

    name = "abr"

    def __post_init__(self) -> None:
        check_levels(self.ladder_bps, self.levels_s)

    def solve(self, chain: Chain, player: Player) -> QoeMetrics:
        """What viewers experience with such a player."""
        return self.solution(chain).answer(player)

    def solution(self, chain: Chain) -> Solution:
        """The chain solved once, for many players."""
        playing, waiting = self.phases(chain)
        return Solution(self.chains(chain)[0], playing, self.name, waiting)

    def phases(self, chain: Chain) -> tuple[Regions, Staircase]:
        """Playing and waiting with such a player."""
        chains, borders = self.chains(chain), np.array([0.0, *self.levels_s])
        return Regions(chains, borders), Staircase(chains, borders)

    def chains(self, chain: Chain) -> list[Chain]:
        """What the video sees in each region of its buffer."""
        factors = [self.bitrate_bps / bitrate_bps for bitrate_bps in self.ladder_bps]
        return [replace(chain, fill=chain.fill * factor, end=chain.end * factor) for factor in factors]


class Staircase:
    """Waiting through the regions from an empty buffer."""

    def __init__(self, chains: list[Chain], borders: Floats) -> None:
        self._chains, self._borders = chains, borders
        self._steps = [WaitingPhase(chain) for chain in chains]

    def until(self, content_s: float) -> WaitOutcome:
        """Wait for `content_s` seconds of video."""
        parts = list(self._parts(content_s))
        waited = self._steps[0].until(parts[0])
        for step, part_s in zip(self._steps[1:], parts[1:], strict=False):
            waited = _then(waited, step.until(part_s))
        return waited

    def laws(self, initial: Floats, step_s: float, num: int) -> Floats:
        """The law of the state when 0, `step_s`, 2 `step_s` .. have come, one row for each of `num` thresholds."""
        return np.array([initial @ self.until(number * step_s).starts_in for number in range(num)])

    def collects(self, content_s: float) -> Floats:
        """From every state, the law of the state in which the download ends while waiting, and the time of the wait.

        The time spent in states follows from where it ends: the law of the state has changed by that much, m T = V - I.
        """
        num = len(self._chains[0].fill)
        reached, collected = np.eye(num), np.zeros((num, num + 1))
        for chain, step, part_s in zip(self._chains, self._steps, self._parts(content_s), strict=False):
            starts_in = step.until(part_s).starts_in
            seconds = np.linalg.solve(chain.killed.T, (starts_in - np.eye(num)).T).T
            collected += reached @ np.column_stack([seconds * chain.end, seconds.sum(axis=1)])
            reached = reached @ starts_in
        return collected

    def _parts(self, content_s: float) -> Iterator[float]:
        """How much of the content comes in each of the regions that it reaches."""
        for bottom, top in pairwise([*self._borders, np.inf]):
            if bottom == 0 or content_s > bottom:
                yield min(content_s, top) - bottom


def _then(first: WaitOutcome, second: WaitOutcome) -> WaitOutcome:
    law = first.starts_in
    collected = (first.mean_s, first.finished, first.gave_up), (second.mean_s, second.finished, second.gave_up)
    return WaitOutcome(
        law @ second.starts_in, *(before + law @ after for before, after in zip(*collected, strict=True))
    )
