"""Videos of a fixed length: the exact answer by inverting a Laplace transform in the length."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from takeup.core.arrays import Complexes, Floats
from takeup.errors import BadInput
from takeup.streaming.model import Chain, Estimate, Player, QoeMetrics
from takeup.streaming.numerics import NUM_TERMS, censor_transforms, expm_many, invert_laplace, restore_transforms
from takeup.streaming.solvers.fluid import STILL_DRIFT, psi_by_doubling, split_blocks
from takeup.streaming.solvers.solution import WaitingPhase, WaitOutcome, check_seconds

Numbers = npt.NDArray[Any]  # real or complex

# The playing phase for many complex rates at once: what transforms of a video's length and of its time need -----------
#
# How it works. With a rate s added to the ways out of every state (per second of content, or per second of time) the
# law W(q) of `phases` becomes a transform: E[e^(-s X); the buffer runs empty] of the content or time X until then. The
# Riccati equation is the same, with complex rates, and doubling solves it for all s of an inversion together.


class PlaybackTransform:
    """W(q) = lift expm(records q) for a stack of rates, for the states `columns` in which a buffer can run empty."""

    def __init__(self, chain: Chain, rates: Complexes) -> None:
        drift = chain.fill - chain.drain
        moves = np.abs(drift) > STILL_DRIFT * chain.drain
        watched, reach = censor_transforms(rates, moves)
        blocks = split_blocks(watched, drift[moves])
        psi = psi_by_doubling(blocks)
        self.columns = np.flatnonzero(moves)[blocks.falls]
        lift = np.zeros((len(rates), int(moves.sum()), len(self.columns)), dtype=np.complex128)
        lift[:, blocks.falls], lift[:, ~blocks.falls] = np.eye(len(self.columns)), psi
        self._lift = restore_transforms(lift, moves, reach)
        self._records = blocks.down + blocks.down_up @ psi

    def empties(self, buffer_s: float) -> Numbers:
        """W(buffer_s), one matrix for every rate."""
        return self._lift @ expm_many(self._records * buffer_s)


# Videos of exactly L seconds: the exact answer by inverting a transform -----------------------------------------------
#
# How it works. Let p(s) be a quantity for a tagged video whose length is exponential with rate s per second of content
# (download ends at rate s b in a state with fill rate b), the others keeping their own law. Since
#
#     p(s) = integral of s e^(-sL) p_L dL,
#
# p(s) / s is the Laplace transform of p_L, the same quantity for a length of exactly L. For every complex s the playing
# phase is that of `phases` with T = Q - s B, solved by doubling for all s at once. Two things are taken out before the
# inversion, which make it accurate to six digits and more:
#
# * the wait for x seconds of video needs exactly x of the length, a factor e^(-s x): so the first wait shifts L;
# * a video that stays in one falling state i empties q after a content of exactly q b_i / |d_i|: a jump of p_L.
#
# A video no longer than the start threshold is downloaded before it plays and cannot stall.


@dataclass(frozen=True, slots=True)
class FixedLengthSolver:
    """Exact for videos of `length_s` seconds; end rates of the chain are not used, nor its variance."""

    length_s: float
    num_terms: int = NUM_TERMS

    name = "fixed"

    def __post_init__(self) -> None:
        check_seconds("length_s", self.length_s)

    def solve(self, chain: Chain, player: Player) -> QoeMetrics:
        """What viewers of such a video experience."""
        endless = replace(chain, end=np.zeros(chain.num_states))
        is_short = self.length_s <= player.start_s
        first = WaitingPhase(endless).until(min(self.length_s, player.start_s))
        stalls = (0.0, 0.0, 0.0, 0.0) if is_short else self._stalls(endless, player, first)
        gave_up = min(1.0, float(chain.initial @ first.gave_up) + stalls[3])
        finished = float(chain.initial @ first.starts_in.sum(axis=1)) if is_short else 0.0
        return QoeMetrics(
            source=self.name,
            startup_s=Estimate(float(chain.initial @ first.mean_s)),
            stall_probability=Estimate(stalls[0]),
            num_stalls=Estimate(stalls[1]),
            stall_s=Estimate(stalls[2]),
            finished_early=Estimate(finished),
            blocked_share=Estimate(chain.blocked_share),
            gave_up=Estimate(gave_up),
        )

    def _stalls(self, chain: Chain, player: Player, first: WaitOutcome) -> tuple[float, float, float, float]:
        transform = _LengthTransform(chain, player, chain.initial @ first.starts_in)
        left = np.array([self.length_s - player.start_s])
        smooth = invert_laplace(transform, left, self.num_terms)[0]
        probability, mean, stall_s, gave_up = np.maximum(smooth + transform.jumps(float(left[0])), 0.0).tolist()
        probability = min(probability, 1.0)
        return probability, max(mean, probability), stall_s, min(gave_up, 1.0)


class _LengthTransform:
    """Transforms in the length left at the start of play: P(N >= 1), E[N], time in stalls, share giving up in them."""

    def __init__(self, chain: Chain, player: Player, started: Floats) -> None:
        if player.again_s == 0:
            raise BadInput("resume_s is 0, which makes stalls of a fixed length countless; give a threshold above zero")
        self.chain, self.player, self.started = chain, player, started
        self._again = WaitingPhase(chain).until(player.again_s)
        falls = chain.drain - chain.fill > STILL_DRIFT * chain.drain
        self._atoms = _atoms(chain, player, started, np.flatnonzero(falls))

    def __call__(self, s: Complexes) -> Complexes:
        playback = PlaybackTransform(self.chain, self.chain.generator - s[:, None, None] * np.diag(self.chain.fill))
        columns, again_s = playback.columns, self.player.again_s
        first = self.started[None, :] @ playback.empties(self.player.start_s)
        decay = np.exp(-s * again_s)[:, None, None]
        cycle = decay * self._again.starts_in[columns] @ playback.empties(again_s)
        per_stall = np.concatenate([np.ones((len(s), len(columns), 1)), self._waits(s, decay)[:, columns]], axis=2)
        summed = (first @ np.linalg.solve(np.eye(len(columns)) - cycle, per_stall))[:, 0]
        values = np.concatenate([first.sum(axis=2), summed], axis=1)
        values[:, :2] -= self._atoms.transform(s)
        return values / s[:, None]

    def jumps(self, left_s: float) -> Floats:
        """What was taken out of the transform, for a length of `left_s` after the start of play."""
        return np.append(self._atoms.counted(left_s), (0.0, 0.0))

    def _waits(self, s: Complexes, decay: Complexes) -> Complexes:
        """Time of one stall, cut short by the end of the video, and the share giving up in it, from every state."""
        chain = self.chain
        rates = s[:, None, None] * np.diag(chain.fill) - (chain.generator - np.diag(chain.give_up))
        whole = np.linalg.solve(rates, np.column_stack([np.ones(chain.num_states), chain.give_up]).astype(complex))
        cut: Complexes = whole - decay * (self._again.starts_in @ whole)
        return cut


@dataclass(frozen=True, slots=True)
class _Atoms:
    """Videos that never change state: the k-th stall comes after a content of first_s + k * again_s."""

    mass: Floats
    ratio: Floats
    first_s: Floats
    again_s: Floats

    def transform(self, s: Complexes) -> Complexes:
        """s times the transform of the jumps of P(N >= 1) and of E[N]."""
        first = self.mass * np.exp(-s[:, None] * self.first_s)
        every = first / (1 - self.ratio * np.exp(-s[:, None] * self.again_s))
        return np.stack([first.sum(axis=1), every.sum(axis=1)], axis=1)

    def counted(self, left_s: float) -> Floats:
        happens = self.first_s < left_s
        if not happens.any():
            return np.zeros(2)
        mass, ratio = self.mass[happens], self.ratio[happens]
        num = np.ceil((left_s - self.first_s[happens]) / self.again_s[happens])
        return np.array([mass.sum(), (mass * (1 - ratio**num) / (1 - ratio)).sum()])


def _atoms(chain: Chain, player: Player, started: Floats, columns: npt.NDArray[np.intp]) -> _Atoms:
    fill, leave, give_up = chain.fill[columns], np.diag(chain.generator)[columns], chain.give_up[columns]
    falls = chain.drain[columns] - fill
    plays, again = player.start_s / falls, player.again_s / falls
    ratio = np.exp(leave * again + (leave - give_up) * player.again_s / fill)
    ratio = np.minimum(ratio, 1 - 1e-12)
    return _Atoms(started[columns] * np.exp(leave * plays), ratio, fill * plays, player.again_s + fill * again)
