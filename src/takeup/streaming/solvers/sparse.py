"""The exact answer for many hundred states, each of which leads to a few others: sparse matrices and iterations.

Scipy is imported where it is used: most predictions have few states and do without.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from takeup.core.arrays import Floats
from takeup.errors import BadInput
from takeup.streaming.model import Chain, Estimate, Player, QoeMetrics
from takeup.streaming.solvers.fluid import DoublingSolver
from takeup.streaming.solvers.solution import LEAST_RESUME_S, ChainSolver, check_seconds

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix
    from scipy.sparse.linalg import SuperLU

# The law Psi of coming back, by shifts --------------------------------------------------------------------------------
#
# How it works. Psi solves the equation of `doubling`, B + A Psi + Psi E + Psi C Psi = 0, whose blocks are sparse, and
# B = P Q with one row of Q for each of the few states in which a growing buffer begins to fall. A Cayley step with a
# shift g, from an estimate X, leaves a remainder that is a product of the same shape:
#
#     P' = (g - A - X C)^-1 P           Q' = Q (g - E - C X)^-1           S = (I - Q' C P')^-1
#     X <- X + 2 g P' S Q'              P <- P - 2 g P' S                 Q <- Q - 2 g S Q'
#
# Each step is two sparse factorisations. Shifts that are even by their logarithm over the rates of the chain make the
# remainder smaller by a factor each. With the same sparse rates it takes 1/4 of the time of doubling at 1,540 states.

SHIFTS_PER_E, MOST_SWEEPS, REMAINDER = 2.0, 8, 1e-13


def psi_by_shifts(up: csr_matrix, up_down: csr_matrix, down_up: csr_matrix, down: csr_matrix) -> Floats:
    """The law of the state in which the buffer comes back, from every state in which it grows."""
    psi = np.zeros(up_down.shape)
    turns, comes = (np.flatnonzero(np.diff(block.indptr)) for block in (up_down, down_up))
    starts, ends = np.eye(len(psi))[:, turns], up_down[turns].toarray()
    back, enters = down_up[comes].toarray(), np.eye(psi.shape[1])[:, comes]
    enough = REMAINDER * np.linalg.norm(ends)
    for shift in _shifts(up, up_down, down_up, down) if len(turns) else ():
        ups, downs = (_factorised(shift, block) for block in (up, down))
        first = _solve_updated(ups.solve, psi[:, comes], back, starts)
        last = _solve_updated(partial(downs.solve, trans="T"), (back @ psi).T, enters.T, ends.T).T
        inner = np.linalg.inv(np.eye(len(turns)) - last[:, comes] @ (back @ first))
        psi += 2 * shift * first @ (inner @ last)
        starts, ends = starts - 2 * shift * first @ inner, ends - 2 * shift * inner @ last
        if np.linalg.norm(starts) * np.linalg.norm(ends) <= enough:
            break
    return np.clip(psi, 0.0, 1.0)


def _shifts(up: csr_matrix, up_down: csr_matrix, down_up: csr_matrix, down: csr_matrix) -> Floats:
    """From the fastest rate to that of the slowest end of a download, again and again."""
    fastest = 2.0 * max(float(np.abs(block.diagonal()).max()) for block in (up, down))
    sums = (up.sum(axis=1) + up_down.sum(axis=1), down.sum(axis=1) + down_up.sum(axis=1))
    slowest = max(1e-12 * fastest, -max(float(each.max()) for each in sums))
    num = math.ceil(SHIFTS_PER_E * math.log(fastest / slowest))
    return np.tile(np.geomspace(fastest, slowest, num), MOST_SWEEPS)


def _solve_updated(solve: Callable[[Floats], Floats], left: Floats, right: Floats, goals: Floats) -> Floats:
    """(M - left right)^-1 goals, where `solve` is M^-1 (Woodbury)."""
    both = solve(np.hstack([goals, left]))
    plain, update = both[:, : goals.shape[1]], both[:, goals.shape[1] :]
    inner = np.eye(update.shape[1]) - right @ update
    return np.asarray(plain + update @ np.linalg.solve(inner, right @ plain), np.float64)


def _factorised(shift: complex, rates: csr_matrix) -> SuperLU:
    """shift - rates, ready to be solved."""
    from scipy.sparse import csc_matrix, identity
    from scipy.sparse.linalg import splu

    matrix = csc_matrix(shift * identity(rates.shape[0]) - rates)
    return splu(matrix, permc_spec="MMD_AT_PLUS_A", options={"SymmetricMode": True})


# Exponentials of sparse rates times vectors ---------------------------------------------------------------------------
#
# How it works. The best rational approximation of degree 12 to e^z on the negative real axis has an error of 3e-12, and
# in partial fractions it is one solve for each pair of poles, however fast the rates are. It needs eigenvalues near the
# real axis, as the chains of cells of constant capacity have them: they are reversible.
#
# Trefethen, Weideman, Schmelzer, "Talbot quadratures and rational approximations", BIT 2006: the method of Caratheodory
# and Fejer.

POLES = (  # above the real axis, and their weights
    (4.827494174589331 + 1.1939879377104055j, 23.59878042499533 + 92.82333241793215j),
    (4.206124927741714 + 3.590920590671856j, -37.571986453664465 - 40.47459214890267j),
    (2.9178692532280994 + 6.017345628910197j, 16.476524502777156 + 5.592381991354745j),
    (0.8517077580007295 + 8.503832410634207j, -2.638824650030915 + 0.3670484135130312j),
    (-2.235967649889935 + 11.109295737049763j, 0.1371430340219127 - 0.07683827746871495j),
    (-6.998687356009195 + 13.995916098140277j, -0.0016368672972488713 + 0.0011627086696513469j),
)


class _Exponential:
    """exp(M) of sparse rates M, applied to vectors."""

    def __init__(self, rates: csr_matrix) -> None:
        self._parts = [(_factorised(pole, rates), weight) for pole, weight in POLES]

    def times(self, vectors: Floats) -> Floats:
        """exp(M) v for every column."""
        return self._sum(vectors, "N")

    def law_after(self, law: Floats) -> Floats:
        """law exp(M)."""
        return self._sum(law, "T")

    def _sum(self, vectors: Floats, trans: str) -> Floats:
        parts = [weight * factors.solve(vectors.astype(np.complex128), trans) for factors, weight in self._parts]
        return np.asarray(sum(parts).real, np.float64)


# A solved chain: as `Solution`, but every matrix between states is replaced by its product with a vector --------------
#
# How it works. W(q) y is exp(-D^-1 T q) applied to (Psi y, y), which holds none of the growing solutions. The values of
# all stalls that follow, z = c + R z with R = W(q_b) after V(q_b), are found by GMRES.

LEAST_DRIFT = 1e-7  # seconds of video per second; a slower change of a buffer is taken to be this one
NUM_KRYLOV, MOST_PHASES = 200, 3  # vectors that GMRES keeps, and thresholds whose factorisations are kept
LEAST_TAIL = 1e-12  # P(more stalls) that is taken for none


class SparseSolver(ChainSolver):
    """Exact for chains without variance whose viewers stay; a buffer goal is left to `doubling`."""

    name = "sparse"

    def solution(self, chain: Chain) -> SparseSolution:
        if chain.variance.any() or chain.give_up.any():
            raise BadInput("a chain with variance or viewers that give up is not solved by sparse matrices")
        return SparseSolution(chain)


class SparseSolution:
    """One chain with its law Psi; thresholds are evaluated one after the other."""

    def __init__(self, chain: Chain) -> None:
        from scipy.sparse import csr_matrix, diags

        self.chain = chain
        drift = chain.fill - chain.drain
        drift = np.where(np.abs(drift) < LEAST_DRIFT, np.copysign(LEAST_DRIFT, drift), drift)
        self._falls, rates = drift < 0, csr_matrix(chain.killed)
        self._filling = diags(1 / chain.fill) @ rates
        self._playing = diags(-1 / drift) @ rates
        scaled = csr_matrix(diags(1 / np.abs(drift)) @ rates)
        above, below = scaled[~self._falls], scaled[self._falls]
        blocks = (above[:, ~self._falls], above[:, self._falls], below[:, ~self._falls], below[:, self._falls])
        self._psi = psi_by_shifts(*blocks) if self._falls.any() and not self._falls.all() else np.zeros(blocks[1].shape)
        self._left_s = _factorised(0.0, rates).solve(np.ones(chain.num_states))
        self._latest: tuple[Player, QoeMetrics] | None = None
        self._phases: dict[float, tuple[_Exponential, _Exponential]] = {}

    def answer(self, player: Player) -> QoeMetrics:
        """Everything that viewers experience."""
        if self._latest is None or self._latest[0] != player:
            is_dense = player.goal_s < math.inf or player.again_s < LEAST_RESUME_S
            self._latest = player, DoublingSolver().solve(self.chain, player) if is_dense else self._answer(player)
        return self._latest[1]

    def _answer(self, player: Player) -> QoeMetrics:
        player.check_fluid()
        initial, started = self.chain.initial, self._started(player)
        stalls = self._empties(player.start_s, self._summed_over_stalls(player.again_s))
        chance, num_stalls, stall_s = np.maximum(started @ stalls, 0.0).tolist()
        return QoeMetrics(
            source="sparse",
            startup_s=Estimate(float((initial - started) @ self._left_s)),
            stall_probability=Estimate(min(1.0, chance)),
            num_stalls=Estimate(num_stalls),
            stall_s=Estimate(stall_s),
            finished_early=Estimate(max(0.0, 1.0 - float(started.sum()))),
            blocked_share=Estimate(self.chain.blocked_share),
        )

    def stall_law(self, player: Player, most: int) -> Floats:
        """P(N = 0), .., P(N = most - 1), P(N >= most)."""
        if player.goal_s < math.inf or player.again_s < LEAST_RESUME_S:
            return DoublingSolver().solution(self.chain).stall_law(player, most)
        started, more, tails = self._started(player), np.ones(int(self._falls.sum())), [1.0]
        while len(tails) <= most and tails[-1] > LEAST_TAIL:
            tails.append(float(started @ self._empties(player.start_s, more[:, None])[:, 0]))
            more = self._next_stall(player.again_s, more)
        tails += [0.0] * (most + 1 - len(tails))
        return np.append(-np.diff(tails), tails[-1])

    def stall_curve(self, step_s: float, num: int, goal_s: float = math.inf) -> Floats:
        """P(at least one stall) for the start thresholds 0, `step_s`, 2 `step_s` .., `num` of them."""
        if goal_s < math.inf:
            return DoublingSolver().solution(self.chain).stall_curve(step_s, num, goal_s)
        law, chances = self.chain.initial, []
        risks = self._at_empty(np.ones((int(self._falls.sum()), 1)))
        for _ in range(num):
            chances.append(float(law @ risks[:, 0]))
            law, risks = self._phase(step_s)[0].law_after(law), self._empties(step_s, risks[self._falls])
        return np.clip(chances, 0.0, 1.0)

    def _started(self, player: Player) -> Floats:
        """The law of the state in which playback starts; what is missing was downloaded before."""
        return self._phase(player.start_s)[0].law_after(self.chain.initial)

    def _phase(self, seconds: float) -> tuple[_Exponential, _Exponential]:
        """Waiting for, and playing, this many seconds of video."""
        check_seconds("a threshold", seconds)
        if len(self._phases) > MOST_PHASES:
            self._phases.clear()
        if seconds not in self._phases:
            self._phases[seconds] = (_Exponential(self._filling * seconds), _Exponential(self._playing * seconds))
        return self._phases[seconds]

    def _at_empty(self, values: Floats) -> Floats:
        """Values for all states from those in which a buffer can run empty."""
        everywhere = np.empty((self.chain.num_states, values.shape[1]))
        everywhere[self._falls], everywhere[~self._falls] = values, self._psi @ values
        return everywhere

    def _empties(self, buffer_s: float, values: Floats) -> Floats:
        """The expected value, by state, of the state in which a buffer of `buffer_s` runs empty."""
        return self._phase(buffer_s)[1].times(self._at_empty(values))

    def _summed_over_stalls(self, again_s: float) -> Floats:
        """One, the number of stalls and their length from a first stall on, by the state in which it begins."""
        from scipy.sparse.linalg import LinearOperator, gmres

        waits, num = self._phase(again_s)[0], int(self._falls.sum())
        stalled_s = (self._left_s - waits.times(self._left_s))[self._falls]
        cycle = LinearOperator((num, num), lambda values: values - self._next_stall(again_s, values))
        sums = [gmres(cycle, each, rtol=1e-10, atol=0.0, restart=NUM_KRYLOV)[0] for each in (np.ones(num), stalled_s)]
        return np.column_stack([np.ones(num), *sums])

    def _next_stall(self, again_s: float, values: Floats) -> Floats:
        empties = self._empties(again_s, values.reshape(-1, 1))
        again: Floats = self._phase(again_s)[0].times(empties)[self._falls, 0]
        return again
