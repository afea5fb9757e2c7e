"""Adaptive bit rate that follows the buffer: the fuller it is, the higher the level. Solved exactly, region by region.

How it works. Between the buffer levels y_k and y_(k+1) the player takes level v_k, which makes fill rates b^(k) in
proportion to 1 / v_k. In each region D_k W' + T_k W = 0 (see `phases`), with solutions

    W(q) = S_k exp(A_k (q - y_k)) alpha_k  +  N_k exp(C_k (q - y_(k+1))) beta_k

where S_k spans the decaying and N_k the growing directions: both exponentials are at most 1, so nothing overflows. The
last region has no growing part. The unknowns alpha, beta follow from one linear system:

* at 0, W_i = 1 in the state i of the stall, for the states in which the buffer falls;
* at y_k, W_i is continuous in every state;
* a state in which the buffer grows below y_k and falls above it *stays* at y_k, switching levels so that it receives
  exactly what it plays: there sum_j T_ij W_j(y_k) = 0 with the end rate of that mixed fill.

States that do not move the buffer in a region are censored there. While waiting the buffer passes the same regions
from below: its exponentials are multiplied. The other users are those of the chain; they do not react.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
from scipy.linalg import expm, schur

from takeup.errors import BadInput
from takeup.streaming.chains import check_ladder
from takeup.streaming.model import Answer, Chain, Player
from takeup.streaming.policies.censoring import Censored, censor
from takeup.streaming.policies.doubling import STILL
from takeup.streaming.policies.phases import Waited, Waiting, check_seconds
from takeup.streaming.policies.solution import Solution

__all__ = ["BufferAbrSolver"]

Floats = npt.NDArray[np.float64]


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
        check_ladder(self.ladder_bps)
        if len(self.levels_s) != len(self.ladder_bps) - 1:
            raise BadInput(f"{len(self.ladder_bps)} bit rates need {len(self.ladder_bps) - 1} levels_s between them")
        if any(high <= low for low, high in zip((0.0, *self.levels_s), self.levels_s, strict=False)):
            raise BadInput(f"levels_s {list(self.levels_s)} must be seconds above zero in rising order")
        check_seconds("the highest of levels_s", self.levels_s[-1] if self.levels_s else 0.0)

    def solve(self, chain: Chain, player: Player) -> Answer:
        """What viewers experience with such a player."""
        return self.solution(chain).answer(player)

    def solution(self, chain: Chain) -> Solution:
        """The chain solved once, for many players."""
        chains = [_at(chain, self.bitrate_bps / bitrate) for bitrate in self.ladder_bps]
        borders = np.array([0.0, *self.levels_s])
        return Solution(chains[0], _Regions(chains, borders), self.name, _Staircase(chains, borders))


def _at(chain: Chain, factor: float) -> Chain:
    return replace(chain, fill=chain.fill * factor, end=chain.end * factor)


class _Staircase:
    """Waiting through the regions from an empty buffer."""

    def __init__(self, chains: list[Chain], borders: Floats) -> None:
        self._steps = [Waiting(chain) for chain in chains]
        self._borders = borders

    def until(self, content_s: float) -> Waited:
        waited = self._steps[0].until(min([content_s, *self._borders[1:2]]))
        for number, step in enumerate(self._steps[1:], start=1):
            if content_s <= self._borders[number]:
                break
            top = min([content_s, *self._borders[number + 1 : number + 2]])
            waited = _then(waited, step.until(top - self._borders[number]))
        return waited


def _then(first: Waited, second: Waited) -> Waited:
    law = first.starts_in
    collected = (first.mean_s, first.finished, first.gave_up), (second.mean_s, second.finished, second.gave_up)
    return Waited(law @ second.starts_in, *(before + law @ after for before, after in zip(*collected, strict=True)))


class _Region:
    """The general solution of one region, for all states of the chain."""

    def __init__(self, chain: Chain, bottom_s: float, top_s: float | None) -> None:
        self.chain, self.bottom_s, self.top_s = chain, bottom_s, top_s
        self.drift = np.where(np.abs(chain.fill - chain.drain) > STILL * chain.drain, chain.fill - chain.drain, 0.0)
        self._watched: Censored = censor(chain.killed, self.drift != 0)
        motion = -self._watched.rates / self.drift[self._watched.kept][:, None]
        self._decaying = _subspace(motion, "lhp", int((self.drift < 0).sum()))
        grows = int((self.drift > 0).sum()) if top_s is not None else 0
        self._growing = _subspace(motion, "rhp", grows)

    @property
    def num_unknowns(self) -> int:
        return len(self._decaying[1]) + len(self._growing[1])

    def basis(self, buffer_s: float) -> Floats:
        """W(buffer_s) as a matrix that acts on the unknowns of this region."""
        falls = self._decaying[0] @ expm(self._decaying[1] * (buffer_s - self.bottom_s))
        top = self.bottom_s if self.top_s is None else self.top_s
        grows = self._growing[0] @ expm(self._growing[1] * (buffer_s - top))
        return self._watched.restore(np.hstack([falls, grows]))

    def slope(self, buffer_s: float) -> Floats:
        falls = self._decaying[0] @ self._decaying[1] @ expm(self._decaying[1] * (buffer_s - self.bottom_s))
        top = self.bottom_s if self.top_s is None else self.top_s
        grows = self._growing[0] @ self._growing[1] @ expm(self._growing[1] * (buffer_s - top))
        return self._watched.restore(np.hstack([falls, grows]))


def _subspace(motion: Floats, half_plane: str, size: int) -> tuple[Floats, Floats]:
    """A basis of the directions of one half-plane, and the motion within them."""
    if size == 0:
        return np.zeros((len(motion), 0)), np.zeros((0, 0))
    form, basis, num_found = schur(motion, sort=half_plane)
    if num_found != size:
        raise BadInput("downloads in this chain may never end, so no stall probability exists; give it end rates")
    return basis[:, :size], form[:size, :size]


class _Regions:
    """The playing phase over all regions."""

    def __init__(self, chains: list[Chain], borders: Floats) -> None:
        tops = [*borders[1:].tolist(), None]
        self._regions = [_Region(*each) for each in zip(chains, borders.tolist(), tops, strict=True)]
        self._borders = borders
        self.columns = np.flatnonzero(self._regions[0].drift < 0)
        self._ends = np.cumsum([region.num_unknowns for region in self._regions])
        self._unknowns = self._solve()

    def empties(self, buffer_s: float) -> Floats:
        check_seconds("a buffer", buffer_s)
        place = int(np.searchsorted(self._borders, buffer_s, side="right")) - 1
        return np.clip(self._regions[place].basis(buffer_s) @ self._of(place), 0.0, 1.0)

    def slope(self) -> Floats:
        return self._regions[0].slope(0.0) @ self._of(0)

    def _of(self, place: int) -> Floats:
        return self._unknowns[self._span(place)]

    def _span(self, place: int) -> slice:
        end = int(self._ends[place])
        return slice(end - self._regions[place].num_unknowns, end)

    def _solve(self) -> Floats:
        total = int(self._ends[-1])
        rows = [self._row(0, self._regions[0].basis(0.0)[self.columns])]
        for place in range(len(self._regions) - 1):
            rows += self._border(place)
        goals = np.zeros((total, len(self.columns)))
        goals[: len(self.columns)] = np.eye(len(self.columns))
        return np.asarray(np.linalg.solve(np.vstack(rows), goals), dtype=np.float64) if total else goals

    def _row(self, place: int, values: Floats) -> Floats:
        row = np.zeros((len(values), int(self._ends[-1])))
        row[:, self._span(place)] = values
        return row

    def _border(self, place: int) -> list[Floats]:
        """The conditions between region `place` and the next: continuity, and balance in the states that stay there."""
        below, above = self._regions[place], self._regions[place + 1]
        lower, upper = below.basis(above.bottom_s), above.basis(above.bottom_s)
        moves = (below.drift != 0) | (above.drift != 0)
        stays = (below.drift > 0) & (above.drift < 0)
        chain = below.chain
        mixed = chain.generator - np.diag(chain.end / chain.fill * chain.drain)
        continuous = self._row(place, lower[moves]) - self._row(place + 1, upper[moves])
        return [continuous, self._row(place, mixed[stays] @ lower)]
