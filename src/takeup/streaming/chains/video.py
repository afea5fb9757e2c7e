"""What a video and its viewer add to a chain: lengths of any phase type, variable bit rate, impatience.

How it works. A length of phase type is the time a small Markov chain takes to end, here run in seconds of *content*:
in a state with fill rate b its rates S are passed b times as fast, and downloads end at b times its exit rates. The
product with any chain is kron(Q, I) + kron(diag(b), S with the exits put back on the diagonal).

Variable bit rate: groups of pictures of g seconds whose size has a coefficient of variation cv make the content that
is played scatter by cv^2 g per second around its mean.

Impatience is a rate of leaving while nothing plays. It enters the waits only: viewers stay during playback. It is
that of the tagged video; the others, whose buffers are not in the state, stay until they are downloaded.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from takeup.core.arrays import Floats
from takeup.errors import BadInput
from takeup.streaming.chains.cell import chain_of
from takeup.streaming.model import Cell, Chain


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


def with_vbr(chain: Chain, cv: float, gop_s: float) -> Chain:
    """Play a variable bit rate: sizes of groups of `gop_s` seconds have the coefficient of variation `cv`."""
    if not (0 <= cv < np.inf and 0 <= gop_s < np.inf):
        raise BadInput(f"cv is {cv} and gop_s {gop_s}; give finite numbers, zero or more")
    return replace(chain, variance=chain.variance + cv**2 * gop_s)


def with_abandonment(chain: Chain, per_s: float) -> Chain:
    """Let viewers leave at `per_s` while they wait at the start or in a stall; their mean patience is 1 / per_s."""
    if not 0 <= per_s < np.inf:
        raise BadInput(f"the rate of giving up is {per_s} per second; give a finite number, zero or more")
    return replace(chain, give_up=np.full(chain.num_states, per_s))


def _kron(by_state: Floats, by_phase: Floats) -> Floats:
    return np.outer(by_state, by_phase).ravel()


def _exits(initial: Floats, rates: Floats) -> Floats:
    num = len(initial)
    if num == 0 or rates.shape != (num, num):
        raise BadInput(f"{num} phases come with rates of shape {rates.shape}; make them {num} x {num}")
    exits = -rates.sum(axis=1)
    off_diagonal = rates - np.diag(np.diag(rates))
    if not np.isfinite(rates).all() or off_diagonal.min() < 0 or exits.min() < -1e-9 * np.abs(rates).max():
        raise BadInput("rates between phases must be zero or more, and rows must sum to zero or less")
    if not np.isfinite(np.linalg.cond(rates)):
        raise BadInput("some phases never lead to the end of the video; give every phase a way out")
    return np.asarray(np.maximum(exits, 0.0))
