"""The same equation as `doubling` solves, by an ordered Schur form: an independent way to the reference numbers.

How it works. The columns of (I, Psi) span the invariant subspace of H = [[E, C], [-B, -A]] for its eigenvalues in the
left half-plane, of which there are exactly as many as states d: downloads end, so no eigenvalue is zero. The ordered
real Schur form gives an orthonormal basis of it. A drift that is nearly zero costs the Schur form its digits, so then
Psi comes from doubling, which keeps them.

Rogers, "Fluid models in queueing theory and Wiener-Hopf factorization of Markov chains", Ann. Appl. Probab. 1994.
"""

import numpy as np

from takeup.core.arrays import Floats
from takeup.streaming.model import Chain
from takeup.streaming.numerics import stable_schur_basis
from takeup.streaming.solvers.fluid import FluidBlocks, fluid_blocks, goal_phase, playing_phase, psi_by_doubling
from takeup.streaming.solvers.solution import ChainSolver, Solution

LARGEST_SPREAD = 1e6  # of rates per second of buffer, above which the Schur form loses more than six digits


class RiccatiSolver(ChainSolver):
    """Exact for chains whose variance is zero; a variance is left out (`diffusion` takes it in)."""

    name = "riccati"

    def solution(self, chain: Chain) -> Solution:
        blocks, watched = fluid_blocks(chain)
        playback = playing_phase(blocks, watched, psi_by_schur(blocks))
        return Solution(chain, playback, self.name, lambda goal_s: goal_phase(chain, goal_s))


def psi_by_schur(blocks: FluidBlocks) -> Floats:
    """The law of the state in which the buffer comes back, from every state in which it grows."""
    num_down = len(blocks.down)
    if num_down == 0 or len(blocks.up) == 0:
        return np.zeros((len(blocks.up), num_down))
    matrix = np.block([[blocks.down, blocks.down_up], [-blocks.up_down, -blocks.up]])
    diagonal = np.abs(np.diag(matrix))
    if diagonal.max() > LARGEST_SPREAD * diagonal.min():
        return psi_by_doubling(blocks)
    basis, num_stable = stable_schur_basis(matrix)
    if num_stable != num_down:  # an eigenvalue at zero: downloads that may never end
        return psi_by_doubling(blocks)
    psi = np.linalg.solve(basis[:num_down, :num_down].T, basis[num_down:, :num_down].T).T
    return np.asarray(np.clip(psi, 0.0, 1.0), dtype=np.float64)
