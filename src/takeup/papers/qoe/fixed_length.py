"""Videos of a fixed length: the exact probability of a stall, by inverting a Laplace transform in the length."""

from dataclasses import replace

import numpy as np

from takeup.core.arrays import Complexes, Floats
from takeup.streaming.model import Chain
from takeup.streaming.numerics import censor_transforms, expm_many, invert_laplace, restore_transforms
from takeup.streaming.solvers.fluid import STILL_DRIFT, psi_by_doubling, split_blocks
from takeup.streaming.solvers.solution import WaitingPhase, check_seconds

# How it works. Let p(s) be the probability for a tagged video whose length is exponential with rate s per second of
# content (download ends at rate s b in a state with fill rate b), the others keeping their own law. Since
#
#     p(s) = integral of s e^(-sL) p_L dL,
#
# p(s) / s is the Laplace transform of p_L, the same for a length of exactly L. For every complex s the playing phase is
# that of `solution` with T = Q - s B; the Riccati equation is the same, with complex rates, and doubling solves it for
# all s of an inversion together. Two things are taken out before the inversion, which make it accurate to six digits:
#
# * the wait for x seconds of video needs exactly x of the length, a factor e^(-s x): so the first wait shifts L;
# * a video that stays in one falling state i empties q after a content of exactly q b_i / |d_i|: a jump of p_L.
#
# A video no longer than the start threshold is downloaded before it plays and cannot stall.


def fixed_length_stalls(chain: Chain, length_s: float, start_s: float) -> float:
    """P(at least one stall) of videos of `length_s` seconds; end rates of the chain are not used, nor its variance."""
    check_seconds("length_s", length_s)
    if length_s <= start_s:
        return 0.0
    endless = replace(chain, end=np.zeros(chain.num_states))
    started = chain.initial @ WaitingPhase(endless).until(start_s).starts_in
    falls = np.flatnonzero(chain.drain - chain.fill > STILL_DRIFT * chain.drain)
    plays_s = start_s / (chain.drain - chain.fill)[falls]
    mass = started[falls] * np.exp(np.diag(chain.generator)[falls] * plays_s)
    jumps_s = chain.fill[falls] * plays_s

    def smooth(s: Complexes) -> Complexes:
        rates = chain.generator - s[:, None, None] * np.diag(chain.fill)
        stalls = (started[None, :] @ law_of_stalls(chain, rates, start_s))[:, 0].sum(axis=1)
        return np.asarray((stalls - np.exp(-s[:, None] * jumps_s) @ mass) / s, np.complex128)

    left_s: Floats = np.array([length_s - start_s])
    share = invert_laplace(smooth, left_s)[0] + mass[jumps_s < left_s].sum()
    return float(np.clip(share, 0.0, 1.0))


def law_of_stalls(chain: Chain, rates: Complexes, buffer_s: float) -> Complexes:
    """W(buffer_s) for a stack of rates: the law of the state in which the buffer runs empty, from every state."""
    drift = chain.fill - chain.drain
    moves = np.abs(drift) > STILL_DRIFT * chain.drain
    watched, reach = censor_transforms(rates, moves)
    blocks = split_blocks(watched, drift[moves])
    psi, num = psi_by_doubling(blocks), int(blocks.falls.sum())
    lift = np.zeros((len(rates), len(blocks.falls), num), dtype=np.complex128)
    lift[:, blocks.falls], lift[:, ~blocks.falls] = np.eye(num), psi
    records = blocks.down + blocks.down_up @ psi
    return np.asarray(restore_transforms(lift, moves, reach) @ expm_many(records * buffer_s), np.complex128)
