"""Cells with more than one kind of user: near and far radio, and elastic data traffic that competes with videos.

How it works. All users get the same share of the *time*, so a user with a worse channel receives less in its share: of
n users one of kind l gets C_l / n bit/s. Data flows take part in sharing and end when their bytes are sent; they do
not play. Both are kinds of flows in the sense of `flows`, which differ in the rate at which they would finish alone.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from takeup.errors import BadInput
from takeup.streaming.chains.cell import SLOT_S, efficiency_of, flows_of, tagged_video
from takeup.streaming.chains.flows import Flow
from takeup.streaming.chains.shared import shared_chain
from takeup.streaming.model import Cell, Chain


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
