"""The whole cell with the capacity of a throughput log, replayed again and again and scaled to the mean of the cell.

The cell says how much it delivers on average; the log says how that varies. A run must be long enough to replay the
log a few times, or the answer is about the part that was replayed.
"""

from __future__ import annotations

import numpy as np

from takeup.core.arrays import Floats
from takeup.errors import BadInput
from takeup.streaming.model import Cell, Player, QoeMetrics
from takeup.streaming.simulate.cell import CellRun, play_levels
from takeup.streaming.simulate.fast.events import CapacityLevels
from takeup.streaming.simulate.lived import metrics_from_batches


def simulate_log(
    cell: Cell, player: Player, durations_s: Floats, rates_bps: Floats, *, num_videos: int = 400_000, seed: int = 0
) -> QoeMetrics:
    """What viewers experience in `cell` when its capacity follows the log; errors from batch means."""
    played = play_log(cell, player, durations_s, rates_bps, num_videos=num_videos, seed=seed)
    return metrics_from_batches("throughput log", played.records)


def play_log(
    cell: Cell, player: Player, durations_s: Floats, rates_bps: Floats, *, num_videos: int = 400_000, seed: int = 0
) -> CellRun:
    """The same, video by video."""
    if cell.capacity is not None:
        raise BadInput(
            "the cell has a changing capacity of its own; leave it out when a throughput log drives the cell"
        )
    return play_levels(cell, player, _log_levels(durations_s, rates_bps), num_videos=num_videos, seed=seed)


def _log_levels(durations_s: Floats, rates_bps: Floats) -> CapacityLevels:
    durations, rates = np.array(durations_s, np.float64), np.array(rates_bps, np.float64)
    _check_log(durations, rates)
    mean_bps = float(durations @ rates / durations.sum())
    return CapacityLevels(rates / mean_bps, durations, np.ones((1, 1)), is_log=True)


def _check_log(durations_s: Floats, rates_bps: Floats) -> None:
    if durations_s.shape != rates_bps.shape or durations_s.ndim != 1 or len(rates_bps) == 0:
        found = f"{durations_s.shape} durations and {rates_bps.shape} rates"
        raise BadInput(f"a log needs one duration for every rate, and at least one of each; found {found}")
    if not (np.isfinite(durations_s).all() and durations_s.min() > 0):
        raise BadInput("every sample of a log must last for a finite time above zero; look for zero or missing times")
    if not (np.isfinite(rates_bps).all() and rates_bps.min() >= 0):
        raise BadInput("the rates of a log must be finite and zero or more; look for missing or negative samples")
    if rates_bps.max() == 0:
        raise BadInput("the log never delivers anything; give one with a rate above zero")
