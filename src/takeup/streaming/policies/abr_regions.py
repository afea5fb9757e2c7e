"""The playing phase of a player that adapts: regions of the buffer, and one linear system that joins them.

How it works. Between the buffer levels y_k and y_(k+1) the player takes level v_k, which makes fill rates b^(k) in
proportion to 1 / v_k. In each region D_k W' + T_k W = 0 (see `phases`), with solutions

    W(q) = S_k exp(A_k (q - y_k)) alpha_k  +  N_k exp(C_k (q - y_(k+1))) beta_k

where S_k spans the decaying and N_k the growing directions: both exponentials are at most 1, so nothing overflows. The
last region has no growing part. The unknowns alpha, beta follow from one linear system:

* at 0, W_i = 1 in the state i of the stall, for the states in which the buffer falls;
* at y_k, W_i is continuous in every state;
* a state in which the buffer grows below y_k and falls above it *stays* at y_k, switching levels so that it receives
  exactly what it plays: there sum_j T_ij W_j(y_k) = 0 with the end rate of that mixed fill.

States that do not move the buffer in a region are censored there.

What a video collects while it plays until its buffer runs empty (the state in which its download ends, and the time)
solves the same equations with sources: D_k u' + T_k u + r_k = 0 with u = 0 at a stall. A solution of region k is
constant, -T_k^-1 r_k; the general one adds the W of above, so that only the right-hand sides of the system change.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np

from takeup.core.arrays import Bools, Floats
from takeup.errors import BadInput
from takeup.streaming.model import Chain
from takeup.streaming.policies.censoring import CensoredChain, censor
from takeup.streaming.policies.doubling import STILL_DRIFT
from takeup.streaming.policies.exponential import expm_many
from takeup.streaming.policies.half_planes import HalfPlane, schur_basis
from takeup.streaming.policies.phases import check_seconds


class _Region:
    """The general solution of one region, for all states of the chain.

    `balanced` are the rates of a state that is held at its upper border.
    """

    def __init__(self, chain: Chain, bottom_s: float, top_s: float | None) -> None:
        self.chain, self.bottom_s, self.top_s = chain, bottom_s, top_s
        self.drift = np.where(
            np.abs(chain.fill - chain.drain) > STILL_DRIFT * chain.drain, chain.fill - chain.drain, 0.0
        )
        self._watched: CensoredChain = censor(chain.killed, self.drift != 0)
        motion = -self._watched.rates / self.drift[self._watched.kept][:, None]
        self._decaying = _subspace(motion, "lhp", int((self.drift < 0).sum()))
        grows = int((self.drift > 0).sum()) if top_s is not None else 0
        self._growing = _subspace(motion, "rhp", grows)
        balanced_end = chain.end / chain.fill * chain.drain
        self.balanced, self.balanced_source = chain.generator - np.diag(balanced_end), _source(balanced_end)

    @cached_property
    def stays_on(self) -> Floats:
        """What is collected if the buffer never leaves this region."""
        return np.asarray(np.linalg.solve(-self.chain.killed, _source(self.chain.end)), dtype=np.float64)

    @property
    def num_unknowns(self) -> int:
        return len(self._decaying[1]) + len(self._growing[1])

    def basis(self, buffer_s: float) -> Floats:
        """W(buffer_s) as a matrix that acts on the unknowns of this region."""
        falls = self._decaying[0] @ expm_many(self._decaying[1] * (buffer_s - self.bottom_s))
        top = self.bottom_s if self.top_s is None else self.top_s
        grows = self._growing[0] @ expm_many(self._growing[1] * (buffer_s - top))
        return self._watched.restore(np.hstack([falls, grows]))

    def slope(self, buffer_s: float) -> Floats:
        falls = self._decaying[0] @ self._decaying[1] @ expm_many(self._decaying[1] * (buffer_s - self.bottom_s))
        top = self.bottom_s if self.top_s is None else self.top_s
        grows = self._growing[0] @ self._growing[1] @ expm_many(self._growing[1] * (buffer_s - top))
        return self._watched.restore(np.hstack([falls, grows]))


def _source(end: Floats) -> Floats:
    """What a state collects per second: the end of the download in itself, and time."""
    return np.column_stack([np.diag(end), np.ones(len(end))])


def _subspace(motion: Floats, half_plane: HalfPlane, size: int) -> tuple[Floats, Floats]:
    """A basis of the directions of one half-plane, and the motion within them."""
    if size == 0:
        return np.zeros((len(motion), 0)), np.zeros((0, 0))
    form, basis, num_found = schur_basis(motion, half_plane)
    if num_found != size:
        raise BadInput("downloads in this chain may never end, so no stall probability exists; give it end rates")
    return basis[:, :size], form[:size, :size]


class Regions:
    """The playing phase over all regions, for chains that differ in fill and end only; `borders` begin with zero."""

    def __init__(self, chains: list[Chain], borders: Floats) -> None:
        tops = [*borders[1:].tolist(), None]
        self._regions = [_Region(*each) for each in zip(chains, borders.tolist(), tops, strict=True)]
        self._borders = borders
        self.columns = np.flatnonzero(self._regions[0].drift < 0)
        self._ends = np.cumsum([region.num_unknowns for region in self._regions])
        self._unknowns = np.asarray(np.linalg.solve(self._system(), self._emptied()), dtype=np.float64)

    def empties(self, buffer_s: float) -> Floats:
        place = self._place(buffer_s)
        return np.clip(self._regions[place].basis(buffer_s) @ self._unknowns[self._span(place)], 0.0, 1.0)

    def slope(self) -> Floats:
        return self._regions[0].slope(0.0) @ self._unknowns[self._span(0)]

    def risks(self, step_s: float, num: int) -> Floats:
        return np.array([self.empties(number * step_s).sum(axis=1) for number in range(num)])

    def _place(self, buffer_s: float) -> int:
        check_seconds("a buffer", buffer_s)
        return int(np.searchsorted(self._borders, buffer_s, side="right")) - 1

    def _span(self, place: int) -> slice:
        end = int(self._ends[place])
        return slice(end - self._regions[place].num_unknowns, end)

    def collects(self, buffer_s: float) -> Floats:
        """From every state, the law of the state in which the download ends before a stall, and the time until either.

        One row for each state; the last column is the time.
        """
        place = self._place(buffer_s)
        return self._regions[place].basis(buffer_s) @ self._collected[self._span(place)] + self._regions[place].stays_on

    @cached_property
    def _collected(self) -> Floats:
        return np.asarray(np.linalg.solve(self._system(), self._sources()), dtype=np.float64)

    def _system(self) -> Floats:
        rows = [self._row(0, self._regions[0].basis(0.0)[self.columns])]
        for place in range(len(self._regions) - 1):
            below, above, moves, stays = self._border(place)
            lower, upper = below.basis(above.bottom_s), above.basis(above.bottom_s)
            rows.append(self._row(place, lower[moves]) - self._row(place + 1, upper[moves]))
            rows.append(self._row(place, below.balanced[stays] @ lower))
        return np.vstack(rows)

    def _emptied(self) -> Floats:
        """The right-hand sides for W: one for each state of a stall."""
        goals = np.zeros((int(self._ends[-1]), len(self.columns)))
        goals[: len(self.columns)] = np.eye(len(self.columns))
        return goals

    def _sources(self) -> Floats:
        """The right-hand sides for what is collected."""
        goals = [-self._regions[0].stays_on[self.columns]]
        for place in range(len(self._regions) - 1):
            below, above, moves, stays = self._border(place)
            goals.append((above.stays_on - below.stays_on)[moves])
            goals.append(-(below.balanced @ below.stays_on + below.balanced_source)[stays])
        return np.vstack(goals)

    def _row(self, place: int, values: Floats) -> Floats:
        row = np.zeros((len(values), int(self._ends[-1])))
        row[:, self._span(place)] = values
        return row

    def _border(self, place: int) -> tuple[_Region, _Region, Bools, Bools]:
        """Region `place` and the next, the states that move the buffer in either, and those that stay between them."""
        below, above = self._regions[place], self._regions[place + 1]
        moves = (below.drift != 0) | (above.drift != 0)
        return below, above, moves, (below.drift > 0) & (above.drift < 0)
