"""From a cell to the chain that its videos see.

How it works. With plain sharing the cell delivers c seconds of video per second to whichever user. A scheduler that
serves the user whose channel is best right now (Rayleigh fading, rate proportional to the signal) delivers c H_n to n
users, with H_n = 1 + 1/2 + .. + 1/n. What one user gets in a slot of delta seconds is c delta X with probability 1/n,
X the largest of n exponentials of mean 1, and nothing otherwise, so per second its mean and variance are

    c H_n / n          c^2 delta [ (H_n^2 + H_n^(2)) / n  -  (H_n / n)^2 ],       H_n^(2) = 1 + 1/4 + .. + 1/n^2

Xu, Elayoubi, Altman, El-Azouzi, Yu, "Flow Level QoE of Video Streaming in Wireless Networks", IEEE TMC 2016.
"""

from __future__ import annotations

import numpy as np

from takeup.core.arrays import Floats
from takeup.errors import BadInput
from takeup.streaming.chains.flows import Flow
from takeup.streaming.chains.shared import TaggedVideo, shared_chain
from takeup.streaming.model import Cell, Chain

SLOT_S = 0.002  # scheduling interval


def chain_of(cell: Cell, tagged: int = 0, slot_s: float = SLOT_S) -> Chain:
    """What a video of class `tagged` of `cell.views` sees; `slot_s` matters for opportunistic cells only."""
    video = tagged_video(cell, tagged, slot_s)
    return shared_chain(flows_of(cell), video, efficiency_of(cell), cell.capacity)


def ps_cell(
    speed: float, mean_s: float, arrivals_per_s: float, max_users: int, efficiency: Floats | None = None
) -> Chain:
    """Plain sharing: `speed` seconds of video per second for all, times `efficiency[n - 1]` when there are n users."""
    flows = [Flow(arrivals_per_s, speed / mean_s)]
    return shared_chain(flows, TaggedVideo(speed, mean_s), np.ones(max_users) if efficiency is None else efficiency)


def flows_of(cell: Cell) -> list[Flow]:
    """The videos of a cell as kinds of flows, one for each class of views."""
    return [Flow(cell.arrivals_per_s * view.share, cell.speed / view.mean_s) for view in cell.views]


def efficiency_of(cell: Cell) -> Floats:
    """How much more the cell delivers to 1, 2, .. max_users users than to one."""
    return _harmonic(cell.max_users, 1) if cell.opportunistic else np.ones(cell.max_users)


def tagged_video(cell: Cell, tagged: int, slot_s: float) -> TaggedVideo:
    """The video of class `tagged`, with the scatter of its service if the scheduler is opportunistic."""
    if not 0 <= tagged < len(cell.views):
        raise BadInput(f"tagged class {tagged} does not exist; the cell has classes 0 to {len(cell.views) - 1}")
    scatter = _slot_variance(cell.max_users, slot_s) if cell.opportunistic else None
    return TaggedVideo(cell.speed, cell.views[tagged].mean_s, scatter)


def _harmonic(most: int, power: int) -> Floats:
    return np.cumsum(1.0 / np.arange(1, most + 1, dtype=np.float64) ** power)


def _slot_variance(most: int, slot_s: float) -> Floats:
    if not 0 <= slot_s < np.inf:
        raise BadInput(f"slot_s is {slot_s}; give the length of a scheduling slot in seconds, such as {SLOT_S}")
    users, first, second = np.arange(1, most + 1), _harmonic(most, 1), _harmonic(most, 2)
    variance: Floats = slot_s * ((first**2 + second) / users - (first / users) ** 2)
    return variance
