"""From a cell to the chain that its videos see: plain, opportunistic and mixed sharing, and batches of cells."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from takeup.core.arrays import Floats
from takeup.errors import BadInput
from takeup.streaming.chains.shared import Flow, TaggedVideo, shared_chain
from takeup.streaming.model import Cell, Chain

# From a cell to the chain that its videos see -------------------------------------------------------------------------
#
# How it works. With plain sharing the cell delivers c seconds of video per second to whichever user. A scheduler that
# serves the user whose channel is best right now (Rayleigh fading, rate proportional to the signal) delivers c H_n to n
# users, with H_n = 1 + 1/2 + .. + 1/n. What one user gets in a slot of delta seconds is c delta X with probability 1/n,
# X the largest of n exponentials of mean 1, and nothing otherwise, so per second its mean and variance are
#
#     c H_n / n          c^2 delta [ (H_n^2 + H_n^(2)) / n  -  (H_n / n)^2 ],       H_n^(2) = 1 + 1/4 + .. + 1/n^2
#
# Xu, Elayoubi, Altman, El-Azouzi, Yu, "Flow Level QoE of Video Streaming in Wireless Networks", IEEE TMC 2016.

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


# Cells with more than one kind of user: near and far radio, and elastic data traffic that competes with videos --------
#
# How it works. All users get the same share of the *time*, so a user with a worse channel receives less in its share:
# of n users one of kind l gets C_l / n bit/s. Data flows take part in sharing and end when their bytes are sent; they
# do not play. Both are kinds of flows in the sense of `flows`, which differ in the rate at which they would finish
# alone.


@dataclass(frozen=True, slots=True)
class RadioClass:
    """Users with the same channel: their share of arrivals, and the throughput of a cell that serves only them."""

    share: float
    capacity_bps: float


def radio_classes(cell: Cell, radios: Sequence[RadioClass], tagged_radio: int = 0, tagged: int = 0) -> Chain:
    """What a video sees whose user is of class `tagged_radio`; the capacity of the cell itself is not used.

    The length of a video does not depend on the channel of its user.
    """
    if not radios or any(r.share <= 0 or not 0 < r.capacity_bps < math.inf for r in radios):
        raise BadInput("every class of radio needs a share above zero and a finite capacity_bps above zero")
    if abs(sum(r.share for r in radios) - 1) > 1e-9:
        raise BadInput(f"the shares of the radio classes add up to {sum(r.share for r in radios):g}; make it 1")
    if not 0 <= tagged_radio < len(radios):
        raise BadInput(f"radio class {tagged_radio} does not exist; there are classes 0 to {len(radios) - 1}")
    flows = [_flow_of_class(flow, radio, cell) for radio in radios for flow in flows_of(cell)]
    video = tagged_video(cell, tagged, SLOT_S)
    speed = radios[tagged_radio].capacity_bps / cell.bitrate_bps
    return shared_chain(flows, replace(video, speed=speed), efficiency_of(cell), cell.capacity)


def with_data_traffic(cell: Cell, data_per_s: float, mean_bytes: float, tagged: int = 0) -> Chain:
    """What a video sees when data flows of `mean_bytes` arrive `data_per_s` times a second and count as users too."""
    if not (0 < data_per_s < math.inf and 0 < mean_bytes < math.inf):
        raise BadInput(f"data_per_s is {data_per_s} and mean_bytes {mean_bytes}; give finite numbers above zero")
    data = Flow(data_per_s, cell.capacity_bps / (8 * mean_bytes))
    video = tagged_video(cell, tagged, SLOT_S)
    return shared_chain([*flows_of(cell), data], video, efficiency_of(cell), cell.capacity)


def _flow_of_class(flow: Flow, radio: RadioClass, cell: Cell) -> Flow:
    relative = radio.capacity_bps / cell.capacity_bps
    return Flow(flow.arrivals_per_s * radio.share, flow.alone_per_s * relative)
