"""The exact answer for a buffer without scatter: an ordered Schur form of a Riccati equation.

How it works. Without variance the buffer falls at once only in the states d with negative drift; in the states u with
positive drift it must first come back. Let Psi be the law of the state in which it comes back to where it was. With

    A = D_u^-1 T_uu,   B = D_u^-1 T_ud,   C = |D_d|^-1 T_du,   E = |D_d|^-1 T_dd

Psi is the smallest non-negative solution of B + A Psi + Psi E + Psi C Psi = 0, and U = E + C Psi. The columns of
(I, Psi) span the invariant subspace of H = [[E, C], [-B, -A]] for its eigenvalues in the left half-plane, of which
there are exactly as many as states d: downloads end, so no eigenvalue is zero. The ordered real Schur form gives an
orthonormal basis of it, and all quantities that follow are probabilities: nothing cancels, whatever the number of
states. States whose drift is zero are censored; a drift that is nearly zero costs the Schur form its digits, so
then Psi comes from doubling, which keeps them.

Rogers, "Fluid models in queueing theory and Wiener-Hopf factorization of Markov chains", Ann. Appl. Probab. 1994.
"""

import numpy as np

from takeup.core.arrays import Floats
from takeup.streaming.model import Chain, Player, QoeMetrics
from takeup.streaming.numerics import schur_basis
from takeup.streaming.solvers.doubling import FluidBlocks, fluid_blocks, playing_phase, psi_by_doubling
from takeup.streaming.solvers.phases import PlayingPhase
from takeup.streaming.solvers.solution import Solution

LARGEST_SPREAD = 1e6  # of rates per second of buffer, above which the Schur form loses more than six digits


class RiccatiSolver:
    """Exact for chains whose variance is zero; a variance is left out (`diffusion` takes it in)."""

    name = "riccati"

    def solve(self, chain: Chain, player: Player) -> QoeMetrics:
        """What viewers experience in this chain."""
        return self.solution(chain).answer(player)

    def solution(self, chain: Chain) -> Solution:
        """The chain solved once, for many players."""
        return Solution(chain, riccati_playing_phase(chain), self.name)


def riccati_playing_phase(chain: Chain) -> PlayingPhase:
    """The playing phase, from the ordered Schur form."""
    blocks, watched = fluid_blocks(chain)
    return playing_phase(blocks, watched, psi_by_schur(blocks))


def psi_by_schur(blocks: FluidBlocks) -> Floats:
    """The law of the state in which the buffer comes back, from every state in which it grows."""
    num_down = len(blocks.down)
    if num_down == 0 or len(blocks.up) == 0:
        return np.zeros((len(blocks.up), num_down))
    matrix = np.block([[blocks.down, blocks.down_up], [-blocks.up_down, -blocks.up]])
    diagonal = np.abs(np.diag(matrix))
    if diagonal.max() > LARGEST_SPREAD * diagonal.min():
        return psi_by_doubling(blocks)
    _, basis, num_stable = schur_basis(matrix, "lhp")
    if num_stable != num_down:  # an eigenvalue at zero: downloads that may never end
        return psi_by_doubling(blocks)
    psi = np.linalg.solve(basis[:num_down, :num_down].T, basis[num_down:, :num_down].T).T
    return np.asarray(np.clip(psi, 0.0, 1.0), dtype=np.float64)
