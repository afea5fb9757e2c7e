"""The whole cell with players that adapt: each takes the bit rate of its ladder that its own buffer allows.

No bit rate is assumed here, neither that of the tagged video nor that of the others, so this checks the mean-field
approximation of the others in the equations.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from takeup.core.seeds import Streams
from takeup.errors import BadInput
from takeup.streaming.chains import check_levels
from takeup.streaming.model import Cell, Player, QoeMetrics
from takeup.streaming.simulate.cell import WARM_UP_SHARE, CellRun, traffic_of
from takeup.streaming.simulate.fast.adaptive import BufferRegions, empty_adaptive_users, play_adaptive_events
from takeup.streaming.simulate.lived import check_run, empty_records, metrics_from_batches


def simulate_adaptive(
    cell: Cell,
    player: Player,
    ladder_bps: Sequence[float],
    levels_s: Sequence[float],
    *,
    num_videos: int = 200_000,
    seed: int = 0,
) -> QoeMetrics:
    """What viewers experience when all take `ladder_bps[k]` between `levels_s[k - 1]` and `levels_s[k]` of buffer."""
    played = play_adaptive(cell, player, ladder_bps, levels_s, num_videos=num_videos, seed=seed)
    return metrics_from_batches("adapting cell", played.records)


def play_adaptive(
    cell: Cell,
    player: Player,
    ladder_bps: Sequence[float],
    levels_s: Sequence[float],
    *,
    num_videos: int = 200_000,
    seed: int = 0,
) -> CellRun:
    """The same, video by video."""
    check_run(player, num_videos)
    if cell.capacity is not None:
        raise BadInput("players that adapt are simulated at a constant capacity; leave the changing one out")
    borders = [0.0, *check_levels(ladder_bps, levels_s), math.inf]
    regions = BufferRegions(np.array(borders), cell.bitrate_bps / np.array(ladder_bps, np.float64))
    num_warm_up = int(num_videos * WARM_UP_SHARE)
    lived = empty_records(num_warm_up + num_videos)
    streams = Streams(seed).child("adapting cell")
    chances = (streams.stream("arrivals"), streams.stream("lengths"))
    flows = empty_adaptive_users(cell.max_users)
    num_events = play_adaptive_events(traffic_of(cell, player, math.inf), regions, flows, lived, chances)
    return CellRun(lived.after(num_warm_up), num_events)
