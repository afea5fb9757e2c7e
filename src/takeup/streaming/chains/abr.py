"""Adaptive bit rate that follows the fair share: with more users in the cell all take a lower level.

How it works. A level of v bit/s turns the capacity C into C / v seconds of video per second, so with n users one of
them fills at C / (n v(n)): adaptation only makes the efficiency of the cell depend on n. Lengths stay in seconds of
video, so a lower level also means that downloads end sooner.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise

import numpy as np

from takeup.core.arrays import Floats
from takeup.errors import BadInput
from takeup.streaming.chains.cell import SLOT_S, efficiency_of, flows_of, tagged_video
from takeup.streaming.chains.shared import shared_chain
from takeup.streaming.model import Cell, Chain

HIGHEST_LEVEL_S = 1e7  # 116 days; beyond it exponentials lose their digits
BitrateRule = Callable[[float, Sequence[float]], float]  # (fair share in bit/s, ladder) to the bit rate taken


def fair_share_rule(share_bps: float, ladder_bps: Sequence[float]) -> float:
    """The highest level that the fair share can carry, else the lowest."""
    return max((level for level in ladder_bps if level <= share_bps), default=min(ladder_bps))


def abr_by_state(
    cell: Cell, ladder_bps: Sequence[float], rule: BitrateRule = fair_share_rule, tagged: int = 0
) -> Chain:
    """What a video sees when every player takes the level that `rule` picks for its fair share of the mean capacity."""
    bitrates = bitrates_by_users(cell, ladder_bps, rule)
    efficiency = efficiency_of(cell) * cell.bitrate_bps / bitrates
    return shared_chain(flows_of(cell), tagged_video(cell, tagged, SLOT_S), efficiency, cell.capacity)


def bitrates_by_users(cell: Cell, ladder_bps: Sequence[float], rule: BitrateRule = fair_share_rule) -> Floats:
    """The bit rate that every user takes with 1, 2, .. max_users users in the cell."""
    ladder = check_ladder(ladder_bps)
    users = np.arange(1, cell.max_users + 1)
    shares = cell.capacity_bps * efficiency_of(cell) / users
    return np.array([rule(float(share), ladder) for share in shares])


def mean_bitrate(chain: Chain, bitrates: Floats) -> float:
    """Mean over the content of a video, where `bitrates[i]` is taken in state i of its chain."""
    content = _seconds_in(chain) * chain.fill
    return float(content @ bitrates / content.sum())


def num_switches(chain: Chain, bitrates: Floats) -> float:
    """Expected number of changes of the bit rate during the download of one video."""
    changes = bitrates[:, None] != bitrates[None, :]
    return float(_seconds_in(chain) @ (chain.generator * changes).sum(axis=1))


def check_ladder(ladder_bps: Sequence[float]) -> list[float]:
    """The ladder, if it rises from above zero."""
    ladder = [float(level) for level in ladder_bps]
    rises = all(low < high for low, high in pairwise(ladder))
    if not ladder or not rises or ladder[0] <= 0 or not all(map(math.isfinite, ladder)):
        raise BadInput(f"the ladder {ladder} must hold bit rates above zero in rising order; sort it and drop repeats")
    return ladder


def check_levels(ladder_bps: Sequence[float], levels_s: Sequence[float]) -> list[float]:
    """The buffers at which the bit rate changes, if they rise from above zero and lie between those of the ladder."""
    num_levels = len(check_ladder(ladder_bps)) - 1
    levels = [float(level_s) for level_s in levels_s]
    if len(levels) != num_levels:
        raise BadInput(f"{num_levels + 1} bit rates need {num_levels} levels_s between them")
    if not all(low < high for low, high in pairwise([0.0, *levels])):
        raise BadInput(f"levels_s {levels} must be seconds above zero in rising order")
    if levels and levels[-1] > HIGHEST_LEVEL_S:
        raise BadInput(f"the highest of levels_s is {levels[-1]}; give seconds of video from 0 to {HIGHEST_LEVEL_S:g}")
    return levels


def _seconds_in(chain: Chain) -> Floats:
    return np.asarray(np.linalg.solve(-chain.killed.T, chain.initial), dtype=np.float64)
