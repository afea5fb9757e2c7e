"""Slow and independent ways to the same answers, and the cell whose numbers are known."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy import sparse
from scipy.sparse.linalg import spsolve

from takeup.core.arrays import Floats
from takeup.streaming.chains import Flow, TaggedVideo, chain_of, shared_chain
from takeup.streaming.model import Cell, Chain


def reference_cell(arrivals_per_s: float = 0.12, max_users: int = 10) -> Cell:
    """2.8 Mbit/s shared by videos of 360 kbit/s and 60 s on average."""
    return Cell(2.8e6, 360e3, arrivals_per_s, max_users)


def eigen_empties(chain: Chain, buffer_s: float) -> Floats:
    """W(q) by the eigenvectors of the first-order equation: D W' + T W = 0, bounded, W = 1 where the buffer falls."""
    drift = chain.fill - chain.drain
    values, vectors = np.linalg.eig(-chain.killed / drift[:, None])
    decaying = values.real < 0
    falls = np.flatnonzero(drift < 0)
    assert decaying.sum() == len(falls)
    basis = vectors[:, decaying]
    weights = np.linalg.solve(basis[falls], np.eye(len(falls)))
    law: Floats = (basis * np.exp(values[decaying] * buffer_s) @ weights).real
    return law


def grid_empties(
    chain: Chain, step_s: float, top_s: float, ladder: Sequence[float] = (1.0,), levels_s: Sequence[float] = ()
) -> Floats:
    """P(empty | buffer, state) on a grid of buffers by finite differences; level k divides the fill by ladder[k]."""
    num, n = round(top_s / step_s), chain.num_states
    matrix = sparse.lil_matrix(((num + 1) * n, (num + 1) * n))
    goal = np.zeros((num + 1) * n)
    for j in range(num + 1):
        for i in range(n):
            row = j * n + i
            below, above = (1 / ladder[int(np.searchsorted(levels_s, (j + h) * step_s))] for h in (-0.5, 0.5))
            up, down = _hops(chain, i, step_s, above, below)
            if j == 0 and (chain.variance[i] > 0 or chain.fill[i] * above < chain.drain[i]):
                matrix[row, row], goal[row] = 1.0, 1.0
                continue
            stays = chain.fill[i] * below > chain.drain[i] > chain.fill[i] * above
            end = chain.end[i] * (chain.drain[i] / chain.fill[i] if stays else above)
            up, down = (0.0 if j == num else up), (0.0 if j == 0 else down)
            for target, rate in ((row + n, up), (row - n, down), *_jumps(chain, i, j * n)):
                if rate > 0:
                    matrix[row, target] = -rate
                    matrix[row, row] += rate
            matrix[row, row] += end
    return np.asarray(spsolve(matrix.tocsc(), goal)).reshape(num + 1, n)


def _hops(chain: Chain, i: int, step_s: float, above: float, below: float) -> tuple[float, float]:
    noise = chain.variance[i] / 2 / step_s**2
    if noise > 0:  # central differences, of second order
        drift = (chain.fill[i] * above - chain.drain[i]) / 2 / step_s
        return noise + drift, noise - drift
    up, down = chain.fill[i] * above - chain.drain[i], chain.drain[i] - chain.fill[i] * below
    return max(up, 0.0) / step_s, max(down, 0.0) / step_s


def _jumps(chain: Chain, i: int, offset: int) -> list[tuple[int, float]]:
    return [(offset + j, float(rate)) for j, rate in enumerate(chain.generator[i]) if j != i]


# Lengths of any phase type: what videos of other lengths are compared with --------------------------------------------
#
# How it works. A length of phase type is the time a small Markov chain takes to end, here run in seconds of *content*:
# in a state with fill rate b its rates S are passed b times as fast, and downloads end at b times its exit rates. The
# product with any chain is kron(Q, I) + kron(diag(b), S with the exits put back on the diagonal).


def phase_type(cell: Cell, initial: Floats, rates: Floats, tagged: int = 0) -> Chain:
    """What a video of `cell` sees whose length has this phase type; the others keep their own lengths."""
    return with_phases(chain_of(cell, tagged), initial, rates)


def with_phases(chain: Chain, initial: Floats, rates: Floats) -> Chain:
    """Replace the length of the video: phases start by `initial` and move by the sub-generator `rates` per second."""
    exits = _exits(initial, rates)
    unit = np.eye(len(initial))
    return Chain(
        generator=np.kron(chain.generator, unit) + np.kron(np.diag(chain.fill), rates + np.diag(exits)),
        end=_kron(chain.fill, exits),
        fill=np.repeat(chain.fill, len(initial)),
        initial=_kron(chain.initial, initial),
        drain=np.repeat(chain.drain, len(initial)),
        variance=np.repeat(chain.variance, len(initial)),
        blocked_share=chain.blocked_share,
        give_up=np.repeat(chain.give_up, len(initial)),
    )


def _kron(by_state: Floats, by_phase: Floats) -> Floats:
    return np.outer(by_state, by_phase).ravel()


def _exits(initial: Floats, rates: Floats) -> Floats:
    assert rates.shape == (len(initial), len(initial))
    return np.asarray(np.maximum(-rates.sum(axis=1), 0.0))


def ps_cell(
    speed: float, mean_s: float, arrivals_per_s: float, max_users: int, efficiency: Floats | None = None
) -> Chain:
    """Plain sharing: `speed` seconds of video per second for all, times `efficiency[n - 1]` when there are n users."""
    flows = [Flow(arrivals_per_s, speed / mean_s)]
    return shared_chain(flows, TaggedVideo(speed, mean_s), np.ones(max_users) if efficiency is None else efficiency)
