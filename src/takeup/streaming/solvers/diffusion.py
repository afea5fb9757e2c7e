"""The exact answer for a buffer with scatter: Brownian noise on top of the drift, from fading or variable bit rate."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from takeup.core.arrays import Floats
from takeup.errors import BadInput
from takeup.streaming.model import Chain
from takeup.streaming.numerics import censor, stable_schur_basis
from takeup.streaming.solvers.fluid import STILL_DRIFT, fluid_playing_phase
from takeup.streaming.solvers.solution import ChainSolver, PlayingPhase, Solution

Indices = npt.NDArray[np.intp]

SMALLEST_VARIANCE = 1e-7  # per second; below it the noise moves a buffer by less than a frame in an hour

# How it works. W(q) solves 1/2 Sigma W'' + D W' + T W = 0 (see `phases`). The states fall into
#
#     s  variance > 0              the noise can empty the buffer at once
#     d  no variance, drift < 0    the buffer falls at once
#     u  no variance, drift > 0    it must first come back
#
# (no variance and no drift: censored). For y = (W_s, W_d, W_u, W_s') the equation is y' = M y, of first order:
#
#     W_s' = W_s'        W_d' = -D_d^-1 (T W)_d        W_u' = -D_u^-1 (T W)_u        W_s'' = -2 Sigma^-1 (D W' + T W)_s
#
# The bounded solutions span the invariant subspace of M for the left half-plane, whose dimension is the number of
# states s and d; with its basis (Z_s, Z_d, Z_u, Z_s') from an ordered Schur form, Z_sd Z_sd^-1 = I fits the boundary,
# the rows of u follow as Z_u Z_sd^-1, and the generator of new lows is U_s = Z_s' Z_sd^-1, U_d = -D_d^-1 (T L)_d.
# Variances may be zero in any states, in all of them (then this is `doubling`) or in none.
#
# The wait before playback is computed without scatter: over seconds of content its effect is negligible.


class DiffusionSolver(ChainSolver):
    """Exact for chains with variance in any of their states."""

    name = "diffusion"

    def solution(self, chain: Chain) -> Solution:
        return Solution(chain, diffusion_playing_phase(chain), self.name)


def diffusion_playing_phase(chain: Chain) -> PlayingPhase:
    """The playing phase with the variance of the chain."""
    noisy = chain.variance > SMALLEST_VARIANCE
    if not noisy.any():
        return fluid_playing_phase(chain)
    drift = chain.fill - chain.drain
    watched = censor(chain.killed, noisy | (np.abs(drift) > STILL_DRIFT * chain.drain))
    system = _SecondOrderSystem(watched.rates, drift[watched.kept], chain.variance[watched.kept])
    lift, records = _bounded_solution(system)
    return PlayingPhase(watched.restore(lift), records, np.flatnonzero(watched.kept)[system.falls])


@dataclass(frozen=True, slots=True)
class _SecondOrderSystem:
    """The second-order equation of the states that move the buffer."""

    rates: Floats
    drift: Floats
    variance: Floats

    @property
    def noisy(self) -> Indices:
        return np.flatnonzero(self.variance > SMALLEST_VARIANCE)

    @property
    def falls(self) -> Indices:
        """The states in which a buffer can run empty: noisy ones first."""
        return np.append(self.noisy, np.flatnonzero((self.variance <= SMALLEST_VARIANCE) & (self.drift < 0)))

    @property
    def grows(self) -> Indices:
        return np.setdiff1d(np.arange(len(self.drift)), self.falls)

    def companion(self) -> Floats:
        """M, for the states in the order s, d, u and the derivatives of s."""
        order, num_noisy = np.append(self.falls, self.grows), len(self.noisy)
        rates, drift = self.rates[np.ix_(order, order)], self.drift[order]
        matrix = np.zeros((len(order) + num_noisy,) * 2)
        matrix[:num_noisy, len(order) :] = np.eye(num_noisy)
        matrix[num_noisy : len(order), : len(order)] = -rates[num_noisy:] / drift[num_noisy:, None]
        scale = 2.0 / self.variance[self.noisy]
        matrix[len(order) :, : len(order)] = -rates[:num_noisy] * scale[:, None]
        matrix[len(order) :, len(order) :] = -np.diag(drift[:num_noisy] * scale)
        return matrix


def _bounded_solution(system: _SecondOrderSystem) -> tuple[Floats, Floats]:
    """L and U of the bounded solution."""
    num_noisy, num_falls = len(system.noisy), len(system.falls)
    basis, num_stable = stable_schur_basis(system.companion())
    if num_stable != num_falls:
        raise BadInput("downloads in this chain may never end, so no stall probability exists; give it end rates")
    beyond = np.linalg.solve(basis[:num_falls, :num_falls].T, basis[num_falls:, :num_falls].T).T
    lift = np.zeros((len(system.drift), num_falls))
    lift[system.falls], lift[system.grows] = np.eye(num_falls), beyond[: len(system.grows)]
    records = np.empty((num_falls, num_falls))
    records[:num_noisy] = beyond[len(system.grows) :]
    quiet = system.falls[num_noisy:]
    records[num_noisy:] = -(system.rates[quiet] @ lift) / system.drift[quiet][:, None]
    return np.clip(lift, 0.0, 1.0), records
