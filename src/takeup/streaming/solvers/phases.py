"""The two phases of a video: waiting for the buffer to fill, and playing until it runs empty.

How it works. T are the rates between states with the end of the download as a way out, b the fill rates, d the drift
of the buffer while it plays (fill minus drain), B and D their diagonal matrices.

Waiting until x seconds of video are there. Measured in content instead of time the state moves with rates B^-1 T, so

    V(x) = expm(B^-1 T x)               the state in which playback starts; what is missing was downloaded before
    m(x): B m' = 1 + T m,  m(0) = 0     the mean time it takes
    f(x): B f' = end + T f,  f(0) = 0   the probability that the download ended first
    g(x): B g' = give up + T g          the probability that the viewer gave up first, one more way out of T

all from one exponential of B^-1 T bordered by the columns B^-1 (1, end, give up). States where nothing arrives (b = 0,
an outage) have no content clock and are censored.

Playing with q seconds in the buffer. W(q) = P(it runs empty before the download ends, in state j | state i) solves

    1/2 Sigma W'' + D W' + T W = 0,     W_ij(0) = 1{i = j} where the buffer can fall at once,     W bounded.

The bounded solution is W(q) = L expm(U q): U moves between the states in which the buffer reaches a new low, and the
rows of L say in which of them it first does so from each state. `riccati`, `doubling` and `diffusion` find L and U.
"""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from takeup.core.arrays import Floats
from takeup.errors import BadInput
from takeup.streaming.model import Chain
from takeup.streaming.numerics import censor, expm_of_rates

OUTAGE_FILL = 1e-8  # below this share of the fastest fill rate nothing arrives; a content clock would only lose digits
LONGEST_S = 1e7  # 116 days; beyond it exponentials lose their digits


def check_seconds(name: str, value: float) -> None:
    """Refuse a length of video that is negative, not a number or beyond all use."""
    if not 0 <= value <= LONGEST_S:
        raise BadInput(f"{name} is {value}; give seconds of video from 0 to {LONGEST_S:g}")


@dataclass(frozen=True, slots=True)
class WaitOutcome:
    """How waiting ends, by initial state: state at the start of play, mean time, P(download ended), P(gave up)."""

    starts_in: Floats
    mean_s: Floats
    finished: Floats
    gave_up: Floats


class WaitingModel(Protocol):
    """The waiting phase: how it ends."""

    def until(self, content_s: float) -> WaitOutcome:
        """Wait for `content_s` seconds of video."""

    def laws(self, initial: Floats, step_s: float, num: int) -> Floats:
        """The law of the state when 0, `step_s`, 2 `step_s` .. have come, one row for each of `num` thresholds."""


class WaitingPhase:
    """The waiting phase of a chain, for any threshold."""

    def __init__(self, chain: Chain) -> None:
        sources = np.column_stack([np.ones(chain.num_states), chain.end, chain.give_up])
        fills = chain.fill > OUTAGE_FILL * chain.fill.max()
        self._watched = censor(chain.killed - np.diag(chain.give_up), fills, sources)
        scale = 1.0 / chain.fill[fills][:, None]
        num = int(fills.sum())
        self._bordered = np.zeros((num + 3, num + 3))
        self._bordered[:num, :num] = self._watched.rates * scale
        self._bordered[:num, num:] = self._watched.sources * scale

    def until(self, content_s: float) -> WaitOutcome:
        """Wait for `content_s` seconds of video."""
        check_seconds("a start threshold", content_s)
        num_states = len(self._watched.kept)
        if content_s == 0:
            return WaitOutcome(np.eye(num_states), *np.zeros((3, num_states)))
        result = expm_of_rates(self._bordered * content_s)[:-3]
        starts_in = np.zeros((num_states, num_states))
        starts_in[:, self._watched.kept] = self._watched.restore(np.clip(result[:, :-3], 0.0, 1.0))
        mean_s, finished, gave_up = self._watched.restore(result[:, -3:], self._watched.collected).T
        return WaitOutcome(starts_in, mean_s, np.clip(finished, 0.0, 1.0), np.clip(gave_up, 0.0, 1.0))

    def laws(self, initial: Floats, step_s: float, num: int) -> Floats:
        """The law of the state when 0, `step_s`, 2 `step_s` .. have come, one row for each of `num` thresholds."""
        step = self.until(step_s).starts_in
        laws = np.empty((num, len(initial)))
        laws[0] = initial
        for number in range(1, num):
            laws[number] = laws[number - 1] @ step
        return laws


class PlayingModel(Protocol):
    """The playing phase: where the buffer runs empty."""

    @property
    def columns(self) -> npt.NDArray[np.intp]:
        """The states in which a buffer can run empty."""

    def empties(self, buffer_s: float) -> Floats:
        """P(the buffer of `buffer_s` runs empty in state columns[j] | state i), one row per state of the chain."""

    def slope(self) -> Floats:
        """Its derivative at an empty buffer."""

    def risks(self, step_s: float, num: int) -> Floats:
        """P(it runs empty | state) with 0, `step_s`, 2 `step_s` .. in the buffer, one row for each of `num` buffers."""


@dataclass(frozen=True, slots=True)
class PlayingPhase:
    """W(q) = lift expm(records q), for the states `columns` in which a buffer can run empty."""

    lift: Floats
    records: Floats
    columns: npt.NDArray[np.intp]

    def empties(self, buffer_s: float) -> Floats:
        check_seconds("a buffer", buffer_s)
        if len(self.columns) == 0:
            return self.lift
        law: Floats = np.clip(self.lift @ expm_of_rates(self.records * buffer_s), 0.0, 1.0)
        return law

    def slope(self) -> Floats:
        return self.lift @ self.records

    def risks(self, step_s: float, num: int) -> Floats:
        check_seconds("a buffer", step_s * num)
        step = expm_of_rates(self.records * step_s)
        falls = np.ones((num, len(self.columns)))
        for number in range(1, num):
            falls[number] = step @ falls[number - 1]
        return np.clip(falls @ self.lift.T, 0.0, 1.0)
