"""The playing phase for many complex rates at once: what transforms of a video's length and of its time need.

How it works. With a rate s added to the ways out of every state (per second of content, or per second of time) the law
W(q) of `phases` becomes a transform: E[e^(-s X); the buffer runs empty] of the content or time X until then. The
Riccati equation is the same, with complex rates, and doubling solves it for all s of an inversion together.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from takeup.core.arrays import Complexes
from takeup.streaming.model import Chain
from takeup.streaming.policies.censoring import censor_transforms, restore_transforms
from takeup.streaming.policies.doubling import STILL_DRIFT, psi_by_doubling, split_blocks
from takeup.streaming.policies.exponential import expm_many

Numbers = npt.NDArray[Any]


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
