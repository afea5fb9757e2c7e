"""The exact answer for a buffer without variance: a Riccati equation, solved by structured doubling."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from takeup.core.arrays import Floats
from takeup.streaming.model import Chain
from takeup.streaming.numerics import CensoredChain, censor, expm_of_rates
from takeup.streaming.solvers.solution import ChainSolver, PlayingPhase, Solution

Numbers = npt.NDArray[Any]  # real or complex

STILL_DRIFT = 1e-9  # a drift this small moves no buffer during a video
MOST_STEPS = 60  # each doubles the horizon; 11 to 20 are usual

# The equation ---------------------------------------------------------------------------------------------------------
#
# How it works. Without variance the buffer falls at once only in the states d with negative drift; in the states u with
# positive drift it must first come back. Let Psi be the law of the state in which it comes back to where it was. With
#
#     A = D_u^-1 T_uu,   B = D_u^-1 T_ud,   C = |D_d|^-1 T_du,   E = |D_d|^-1 T_dd
#
# Psi is the smallest non-negative solution of B + A Psi + Psi E + Psi C Psi = 0, and U = E + C Psi. All quantities that
# follow are probabilities: nothing cancels, whatever the number of states. States whose drift is zero are censored.
# After a Cayley transform with a rate gamma at least as large as every diagonal entry, the
# equation is a fixed point that doubles its horizon in each step. With A~ = -A + gamma I, E~ = -E + gamma I:
#
#     W = A~ - B E~^-1 C              V = E~ - C A~^-1 B
#     F = I - 2 gamma W^-1            S = I - 2 gamma V^-1
#     H = 2 gamma W^-1 B E~^-1        G = 2 gamma E~^-1 C W^-1
#     repeat  X = (I - G H)^-1:   H += F H X S,   G += S X G F,   F <- F F + F H X G F,   S <- S X S      (old G, H)
#
# H grows to Psi quadratically. Only non-negative terms are added, so small probabilities keep their relative accuracy
# (deep tails), and every step is a product or a solve, so that any number of chains of one shape is solved at once: all
# functions here take leading axes. With complex end rates it serves transforms.
#
# Guo, Lin, Xu, "A structure-preserving doubling algorithm for nonsymmetric algebraic Riccati equation", Numer. Math.
# 2006.


class DoublingSolver(ChainSolver):
    """Exact for chains whose variance is zero, with relative accuracy in deep tails."""

    name = "doubling"

    def solution(self, chain: Chain) -> Solution:
        return Solution(chain, fluid_playing_phase(chain), self.name, lambda goal_s: goal_phase(chain, goal_s))


def fluid_playing_phase(chain: Chain) -> PlayingPhase:
    """The playing phase, by doubling."""
    blocks, watched = fluid_blocks(chain)
    return playing_phase(blocks, watched, psi_by_doubling(blocks))


@dataclass(frozen=True, slots=True)
class FluidBlocks:
    """Rates per second of buffer between the states where it grows (up) and those where it falls (down)."""

    falls: npt.NDArray[np.bool_]
    up: Numbers
    up_down: Numbers
    down_up: Numbers
    down: Numbers


def fluid_blocks(chain: Chain) -> tuple[FluidBlocks, CensoredChain]:
    """The blocks of a chain without its variance, and what is left of it after censoring states of no drift."""
    drift = chain.fill - chain.drain
    watched = censor(chain.killed, np.abs(drift) > STILL_DRIFT * chain.drain)
    return split_blocks(watched.rates, drift[watched.kept]), watched


def split_blocks(rates: Numbers, drift: Floats) -> FluidBlocks:
    """Blocks of rates per second of buffer; the chains of a batch have their up and down states in the same places."""
    falls = (drift if drift.ndim == 1 else drift[0]) < 0
    scaled = rates / np.abs(drift)[..., None]
    above, below = scaled[..., ~falls, :], scaled[..., falls, :]
    return FluidBlocks(falls, above[..., ~falls], above[..., falls], below[..., ~falls], below[..., falls])


def playing_phase(blocks: FluidBlocks, watched: CensoredChain, psi: Floats) -> PlayingPhase:
    """The playing phase from the law Psi of coming back, for all states including the censored ones."""
    lift = np.empty((len(blocks.falls), len(blocks.down)))
    lift[blocks.falls], lift[~blocks.falls] = np.eye(len(blocks.down)), psi
    columns = np.flatnonzero(watched.kept)[blocks.falls]
    return PlayingPhase(watched.restore(lift), blocks.down + blocks.down_up @ psi, columns)


def psi_by_doubling(blocks: FluidBlocks) -> Numbers:
    """The law of the state in which the buffer comes back, from every state in which it grows."""
    return passages_by_doubling(blocks)[0]


def passages_by_doubling(blocks: FluidBlocks) -> tuple[Numbers, Numbers]:
    """Psi, and the same for a buffer that first falls and comes back from below."""
    if 0 in blocks.up_down.shape:
        return blocks.up_down.copy(), blocks.down_up.copy()
    forward, backward, returns, ascents = _cayley(blocks)
    unit = np.eye(backward.shape[-1])
    for _ in range(MOST_STEPS):
        solved = np.linalg.solve(unit - ascents @ returns, np.concatenate([backward, ascents], axis=-1))
        onward, across = solved[..., : len(unit)], solved[..., len(unit) :]
        hops = forward @ returns
        growth = hops @ onward
        returns, ascents = returns + growth, ascents + backward @ across @ forward
        forward, backward = forward @ forward + hops @ across @ forward, backward @ onward
        if (np.abs(growth) <= 1e-15 * np.abs(returns)).all():
            break
    return returns, ascents


def _cayley(blocks: FluidBlocks) -> tuple[Numbers, Numbers, Numbers, Numbers]:
    """The starting matrices F, S, H, G."""
    diagonals = [np.abs(np.diagonal(block, axis1=-2, axis2=-1)).max(axis=-1) for block in (blocks.up, blocks.down)]
    gamma = np.maximum(*diagonals)[..., None, None]
    up_unit, down_unit = np.eye(blocks.up.shape[-1]), np.eye(blocks.down.shape[-1])
    up_inverse = np.linalg.inv(gamma * up_unit - blocks.up)
    down_inverse = np.linalg.inv(gamma * down_unit - blocks.down)
    w_inverse = np.linalg.inv(gamma * up_unit - blocks.up - blocks.up_down @ down_inverse @ blocks.down_up)
    v_inverse = np.linalg.inv(gamma * down_unit - blocks.down - blocks.down_up @ up_inverse @ blocks.up_down)
    returns = 2 * gamma * w_inverse @ blocks.up_down @ down_inverse
    ascents = 2 * gamma * down_inverse @ blocks.down_up @ w_inverse
    return up_unit - 2 * gamma * w_inverse, down_unit - 2 * gamma * v_inverse, returns, ascents


# A buffer goal: the download pauses while the buffer is full ----------------------------------------------------------
#
# How it works. Between 0 and the goal B the equation is the same, but solutions that grow towards B count as well. With
# Psi^ and U^ = A + B Psi^ for a buffer that is watched from above (the other result of the doubling),
#
#     W(q) = (I, Psi)' e^(U q) X  +  (Psi^, I)' e^(U^ (B - q)) Y
#
# At the goal a growing state stays until it changes, and downloads at the pace of playback; let R be the law of the
# falling state that ends this. W_d(0) = I and W_u(B) = R W_d(B) give
#
#     Y = (I - R Psi^)^-1 (R - Psi) e^(U B) X          X = (I + Psi^ e^(U^ B) Y X^-1)^-1
#
# All exponentials are of sub-generators, so nothing overflows, however high the goal.


class GoalPhase:
    """W(q) below a buffer goal, for the states `columns` in which a buffer can run empty."""

    def __init__(self, blocks: FluidBlocks, watched: CensoredChain, leaves: Floats, goal_s: float) -> None:
        self.goal_s, self._blocks, self._watched = goal_s, blocks, watched
        self.columns = np.flatnonzero(watched.kept)[blocks.falls]
        self._psi, self._psi_up = passages_by_doubling(blocks)
        self._down = blocks.down + blocks.down_up @ self._psi
        self._up = blocks.up + blocks.up_down @ self._psi_up
        unit = np.eye(len(blocks.up))
        share = np.linalg.solve(unit - leaves @ self._psi_up, leaves - self._psi) @ expm_of_rates(self._down * goal_s)
        mixed = np.eye(len(self.columns)) + self._psi_up @ expm_of_rates(self._up * goal_s) @ share
        self._from_below = np.linalg.inv(mixed)
        self._from_above = share @ self._from_below

    def empties(self, buffer_s: float) -> Floats:
        """P(the buffer of `buffer_s` runs empty in state columns[j] | state i), one row per state of the chain."""
        below = expm_of_rates(self._down * buffer_s) @ self._from_below
        above = expm_of_rates(self._up * (self.goal_s - buffer_s)) @ self._from_above
        values = np.empty((len(self._blocks.falls), len(self.columns)))
        values[self._blocks.falls] = below + self._psi_up @ above
        values[~self._blocks.falls] = self._psi @ below + above
        return np.clip(self._watched.restore(values), 0.0, 1.0)


def goal_phase(chain: Chain, goal_s: float) -> GoalPhase:
    """The playing phase of a player whose download pauses while `goal_s` seconds are in its buffer."""
    blocks, watched = fluid_blocks(chain)
    paced = chain.generator - np.diag(chain.end * np.minimum(1.0, chain.drain / chain.fill))
    full = censor(paced, watched.kept).rates
    falls = blocks.falls
    leaves = np.linalg.solve(-full[np.ix_(~falls, ~falls)], full[np.ix_(~falls, falls)])
    return GoalPhase(blocks, watched, np.asarray(leaves, np.float64), goal_s)
