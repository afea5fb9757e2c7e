"""A solved chain: the two phases of a video, the law of its stalls, and the answer for any thresholds."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from takeup.core.arrays import Floats
from takeup.errors import BadInput
from takeup.streaming.contract import Solver
from takeup.streaming.model import Chain, Estimate, Player, QoeMetrics
from takeup.streaming.numerics import censor, expm_of_rates

OUTAGE_FILL = 1e-8  # below this share of the fastest fill rate nothing arrives; a content clock would only lose digits
LONGEST_S = 1e7  # 116 days; beyond it exponentials lose their digits
LEAST_RESUME_S = 1e-9  # seconds of video; a player that resumes on less stutters

# The two phases of a video: waiting for the buffer to fill, and playing until it runs empty ---------------------------
#
# How it works. T are the rates between states with the end of the download as a way out, b the fill rates, d the drift
# of the buffer while it plays (fill minus drain), B and D their diagonal matrices.
#
# Waiting until x seconds of video are there. Measured in content instead of time the state moves with rates B^-1 T, so
#
#     V(x) = expm(B^-1 T x)               the state in which playback starts; what is missing was downloaded before
#     m(x): B m' = 1 + T m,  m(0) = 0     the mean time it takes
#     f(x): B f' = end + T f,  f(0) = 0   the probability that the download ended first
#     g(x): B g' = give up + T g          the probability that the viewer gave up first, one more way out of T
#
# all from one exponential of B^-1 T bordered by the columns B^-1 (1, end, give up). States where nothing arrives (b =
# 0, an outage) have no content clock and are censored.
#
# Playing with q seconds in the buffer. W(q) = P(it runs empty before the download ends, in state j | state i) solves
#
#     1/2 Sigma W'' + D W' + T W = 0,     W_ij(0) = 1{i = j} where the buffer can fall at once,     W bounded.
#
# The bounded solution is W(q) = L expm(U q): U moves between the states in which the buffer reaches a new low, and the
# rows of L say in which of them it first does so from each state. `doubling` and `diffusion` find L and U.


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


@dataclass(frozen=True, slots=True)
class PlayingPhase:
    """W(q) = lift expm(records q), for the states `columns` in which a buffer can run empty."""

    lift: Floats
    records: Floats
    columns: npt.NDArray[np.intp]

    def empties(self, buffer_s: float) -> Floats:
        """P(the buffer of `buffer_s` runs empty in state columns[j] | state i), one row per state of the chain."""
        check_seconds("a buffer", buffer_s)
        if len(self.columns) == 0:
            return self.lift
        law: Floats = np.clip(self.lift @ expm_of_rates(self.records * buffer_s), 0.0, 1.0)
        return law

    def risks(self, step_s: float, num: int) -> Floats:
        """P(it runs empty | state) with 0, `step_s`, 2 `step_s` .. in the buffer, one row for each of `num` buffers."""
        check_seconds("a buffer", step_s * num)
        step = expm_of_rates(self.records * step_s)
        falls = np.ones((num, len(self.columns)))
        for number in range(1, num):
            falls[number] = step @ falls[number - 1]
        return np.clip(falls @ self.lift.T, 0.0, 1.0)


# The number of stalls and their length, from one cycle of waiting and playing -----------------------------------------
#
# How it works. Let v be the law of the state at the first stall (it sums to P(N >= 1)) and R = V(q_b) W(q_b) the law of
# the state at the next one, for every state of a stall. Then, with m the mean time a stall lasts,
#
#     P(N >= n) = v R^(n-1) 1         E[z^N] = 1 + (z - 1) v (I - z R)^-1 1
#     E[N]      = v (I - R)^-1 1      E[time in stalls] = v (I - R)^-1 m


@dataclass(frozen=True, slots=True)
class StallCounts:
    """The law of the number of stalls, and the expected time spent in them."""

    first: Floats
    cycle: Floats
    mean: float
    stall_s: float

    def at_least(self, num_stalls: int) -> float:
        """P(N >= num_stalls)."""
        if num_stalls <= 0:
            return 1.0
        law = self.first
        for _ in range(num_stalls - 1):
            law = law @ self.cycle
        return min(1.0, float(law.sum()))

    def law(self, most: int) -> Floats:
        """P(N = 0), .., P(N = most - 1), P(N >= most)."""
        tails = np.array([self.at_least(num) for num in range(most + 1)])
        return np.append(-np.diff(tails), tails[-1])


# A solved chain: what does not depend on the player is computed once, thresholds are evaluated afterwards -------------
#
# How it works. The start threshold q_a ends the first wait, the resume threshold q_b every later one. With a resume
# threshold of zero the player stutters: it stalls infinitely often for no time each, and plays what arrives. The time
# lost is the limit of small thresholds: a cycle is R = I + q (W'(0) + B^-1 T W(0)) + .. and lasts q / b, so
#
#     E[time in stalls] = v (-(W'(0) + B^-1 T W(0)))^-1 (1 / b)       over the states in which a buffer can be empty.


@dataclass(frozen=True, slots=True)
class _StallCycle:
    """One wait and the play after it."""

    threshold_s: float
    waited: WaitOutcome
    empties: Floats
    goal_s: float


class SolvedChain(Protocol):
    """One chain, solved once for many players."""

    chain: Chain

    def answer(self, player: Player) -> QoeMetrics:
        """Everything that viewers experience."""

    def stall_law(self, player: Player, most: int) -> Floats:
        """P(N = 0), .., P(N = most - 1), P(N >= most) of the number N of stalls."""

    def stall_curve(self, step_s: float, num: int, goal_s: float = math.inf) -> Floats:
        """P(N >= 1) for the start thresholds 0, `step_s`, 2 `step_s` .., `num` of them, for the price of about one."""


class BelowGoal(Protocol):
    """The playing phase of a player with a buffer goal."""

    def empties(self, buffer_s: float) -> Floats:
        """P(the buffer of `buffer_s` runs empty in state j | state i)."""


class Solution:
    """One chain with its playing phase solved; every question about thresholds is a few small products.

    `below` gives the playing phase for a buffer goal; without it players with a goal are refused.
    """

    def __init__(
        self, chain: Chain, playback: PlayingPhase, source: str, below: Callable[[float], BelowGoal] | None = None
    ) -> None:
        self.chain = chain
        self.playback = playback
        self.source = source
        self._below = below
        self._goals: dict[float, PlayingPhase | BelowGoal] = {math.inf: playback}
        self._waiting = WaitingPhase(chain)
        self._latest: _StallCycle | None = None  # several questions about one player follow each other

    def prefetch(self, threshold_s: float) -> WaitOutcome:
        """How the wait for `threshold_s` seconds of video ends, from every state."""
        latest = self._latest
        return latest.waited if latest and latest.threshold_s == threshold_s else self._waiting.until(threshold_s)

    def playback_below(self, goal_s: float) -> PlayingPhase | BelowGoal:
        """The playing phase of a player with this buffer goal."""
        if goal_s not in self._goals:
            if self._below is None:
                raise BadInput("a chain with variance is solved without a buffer goal; leave the goal out")
            self._goals[goal_s] = self._below(goal_s) if len(self.playback.columns) else self.playback
        return self._goals[goal_s]

    def stall_probability(self, threshold_s: float, goal_s: float = math.inf) -> float:
        """P(N >= 1) when playback starts at `threshold_s`, and the download pauses at `goal_s`."""
        start_s = min(threshold_s, goal_s)
        started = self.chain.initial @ self.prefetch(start_s).starts_in
        return float(np.clip((started @ self.playback_below(goal_s).empties(start_s)).sum(), 0.0, 1.0))

    def stall_curve(self, step_s: float, num: int, goal_s: float = math.inf) -> Floats:
        """P(N >= 1) for the start thresholds 0, `step_s`, 2 `step_s` .., `num` of them, for the price of about one."""
        if goal_s < math.inf:
            return np.array([self.stall_probability(place * step_s, goal_s) for place in range(num)])
        laws, risks = self._waiting.laws(self.chain.initial, step_s, num), self.playback.risks(step_s, num)
        chances: Floats = np.clip((laws * risks).sum(axis=1), 0.0, 1.0)
        return chances

    def stall_law(self, player: Player, most: int) -> Floats:
        """P(N = 0), .., P(N = most - 1), P(N >= most)."""
        return self.counts(player).law(most)

    def counts(self, player: Player) -> StallCounts:
        """The law of the number of stalls."""
        return self._counts(*self._cycles(player))[0]

    def answer(self, player: Player) -> QoeMetrics:
        """Everything that viewers experience."""
        start, again = self._cycles(player)
        counts, gave_up = self._counts(start, again)
        initial = self.chain.initial
        return QoeMetrics(
            source=self.source,
            startup_s=Estimate(float(initial @ start.waited.mean_s)),
            stall_probability=Estimate(counts.at_least(1)),
            num_stalls=Estimate(counts.mean),
            stall_s=Estimate(counts.stall_s),
            finished_early=Estimate(float(initial @ start.waited.finished)),
            blocked_share=Estimate(self.chain.blocked_share),
            gave_up=Estimate(gave_up),
        )

    def waiting_share(self, player: Player) -> Floats:
        """For every state the share of the download's time in it that the player waits, at the start or in a stall."""
        start, again = self._cycles(player)
        columns, unit = self.playback.columns, np.eye(self.chain.num_states)
        impatient = self.chain.killed - np.diag(self.chain.give_up)
        content = np.diag(self.chain.fill)
        cycle = again.waited.starts_in[columns] @ again.empties
        waits, plays = np.zeros((2, self.chain.num_states))
        law = self.chain.initial
        for phase in (start, again):
            occupied = np.linalg.solve(impatient, content @ (phase.waited.starts_in - unit)) / self.chain.fill
            waits += law @ occupied
            started = law @ phase.waited.starts_in
            ended = started @ phase.empties
            plays += np.linalg.solve(-self.chain.killed.T, started - ended @ unit[columns])
            law = np.linalg.solve(np.eye(len(columns)) - cycle.T, ended) @ unit[columns]
        share: Floats = waits / np.maximum(waits + plays, 1e-300)
        return share

    def _cycles(self, player: Player) -> tuple[_StallCycle, _StallCycle]:
        player.check_fluid()
        start_s, again_s = (min(each, player.goal_s) for each in (player.start_s, player.again_s))
        if again_s < LEAST_RESUME_S and player.goal_s < math.inf:
            raise BadInput("a player that resumes on an empty buffer is solved without a buffer goal; give resume_s")
        start = self._cycle(start_s, player.goal_s)
        return start, start if again_s == start_s else self._cycle(again_s, player.goal_s)

    def _cycle(self, threshold_s: float, goal_s: float) -> _StallCycle:
        if self._latest is None or (self._latest.threshold_s, self._latest.goal_s) != (threshold_s, goal_s):
            waited, empties = self._waiting.until(threshold_s), self.playback_below(goal_s).empties(threshold_s)
            self._latest = _StallCycle(threshold_s, waited, empties, goal_s)
        return self._latest

    def _counts(self, start: _StallCycle, again: _StallCycle) -> tuple[StallCounts, float]:
        """The number of stalls, and the share of viewers that gave up in any wait."""
        first = self.chain.initial @ start.waited.starts_in @ start.empties
        cycle = again.waited.starts_in[self.playback.columns] @ again.empties
        mean, stall_s, left_stalled = self._summed_over_stalls(first, cycle, again)
        gave_up = min(1.0, float(self.chain.initial @ start.waited.gave_up) + left_stalled)
        return StallCounts(first, cycle, mean, stall_s), gave_up

    def _summed_over_stalls(self, first: Floats, cycle: Floats, again: _StallCycle) -> tuple[float, float, float]:
        if first.sum() == 0:
            return 0.0, 0.0, 0.0
        if again.threshold_s < LEAST_RESUME_S:
            return math.inf, *(first @ self._stutter()).tolist()
        columns = self.playback.columns
        per_stall = np.column_stack(
            [np.ones(len(columns)), again.waited.mean_s[columns], again.waited.gave_up[columns]]
        )
        mean, stall_s, left_stalled = (first @ np.linalg.solve(np.eye(len(columns)) - cycle, per_stall)).tolist()
        return mean, stall_s, left_stalled

    def _stutter(self) -> Floats:
        """Time in stalls and share giving up, from every state of a first stall, when play resumes at once."""
        columns, fill = self.playback.columns, self.chain.fill[self.playback.columns][:, None]
        rates = (self.chain.killed - np.diag(self.chain.give_up))[columns]
        slope = self.playback.lift @ self.playback.records  # at an empty buffer
        cycle = slope[columns] + rates @ self.playback.empties(0.0) / fill
        per_content = np.column_stack([np.ones(len(columns)), self.chain.give_up[columns]]) / fill
        return np.asarray(np.linalg.solve(-cycle, per_content), dtype=np.float64)


class ChainSolver(Solver, ABC):
    """A solver that gives the solution of a chain for all thresholds."""

    name: str

    @abstractmethod
    def solution(self, chain: Chain) -> SolvedChain:
        """The chain solved once, for many players."""

    def solve(self, chain: Chain, player: Player) -> QoeMetrics:
        """What viewers experience in this chain."""
        return self.solution(chain).answer(player)
