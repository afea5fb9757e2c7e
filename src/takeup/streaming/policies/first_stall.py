"""Time of the first stall: the law of the time from the start of play until the buffer runs empty.

How it works. An exit rate s in every state, added to the end of the download, makes W(q) the transform of the time to
the first stall, on the videos that have one. A video that stays in one falling state i stalls after exactly q / |d_i|
seconds: these atoms are removed before the inversion by Euler summation and added back.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from takeup.core.arrays import Complexes, Floats
from takeup.errors import BadInput
from takeup.streaming.model import Chain
from takeup.streaming.policies.doubling import STILL_DRIFT
from takeup.streaming.policies.euler import invert_laplace
from takeup.streaming.policies.phases import WaitingPhase, check_seconds
from takeup.streaming.policies.transforms import PlaybackTransform


def first_stall_cdf(chain: Chain, start_s: float, times_s: npt.ArrayLike) -> Floats:
    """P(a stall within t seconds of the start of play) for every t; it rises to the probability of a stall at all."""
    check_seconds("a start threshold", start_s)
    times = np.atleast_1d(np.asarray(times_s, dtype=np.float64))
    if not (np.isfinite(times).all() and times.min(initial=1.0) > 0):
        raise BadInput("times_s must be finite seconds above zero")
    started = chain.initial @ WaitingPhase(chain).until(start_s).starts_in
    delays, masses = _atoms(chain, start_s, started)

    def smooth(s: Complexes) -> Complexes:
        rates = chain.killed - s[:, None, None] * np.eye(chain.num_states)
        law = started[None, :] @ PlaybackTransform(chain, rates).empties(start_s)
        value: Complexes = (law.sum(axis=(1, 2)) - np.exp(-s[:, None] * delays) @ masses) / s
        return value

    reached = delays <= times[:, None] * (1 + 1e-12)
    return np.clip(invert_laplace(smooth, times) + reached @ masses, 0.0, 1.0)


def _atoms(chain: Chain, start_s: float, started: Floats) -> tuple[Floats, Floats]:
    falls = chain.drain - chain.fill > STILL_DRIFT * chain.drain
    delays = start_s / (chain.drain - chain.fill)[falls]
    return delays, started[falls] * np.exp(np.diag(chain.killed)[falls] * delays)
