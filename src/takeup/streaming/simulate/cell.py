"""Simulation of the whole cell: constant or changing capacity, or that of a throughput log."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from takeup.core.arrays import Floats
from takeup.core.seeds import Streams
from takeup.errors import BadInput
from takeup.streaming.chains import efficiency_of
from takeup.streaming.model import Capacity, Cell, Player, QoeMetrics
from takeup.streaming.numerics import are_connected
from takeup.streaming.simulate.events import CapacityLevels, CellTraffic, empty_cell, play_events
from takeup.streaming.simulate.video_records import (
    VideoRecords,
    check_run,
    empty_records,
    mean_patience_s,
    metrics_from_batches,
)

WARM_UP_SHARE = 0.05  # of the videos, which find the cell emptier than in steady state

# Nothing of the mathematics is assumed here but the traffic itself, so this checks the chain that a tagged video is
# said to see, not only its solution. An event is an arrival (also a blocked one), the end of a download, a change of
# the capacity, a player that starts, stalls or resumes, or a viewer that gives up: here all viewers are equally
# impatient, and one that leaves frees its share for the others.


class CellRun(NamedTuple):
    """A run of a cell: its videos after the warm-up, and how many events it took in all."""

    records: VideoRecords
    num_events: int


def simulate_cell(
    cell: Cell, player: Player, *, num_videos: int = 400_000, seed: int = 0, give_up_per_s: float = 0.0
) -> QoeMetrics:
    """What viewers experience in `cell`, from a run of the whole cell; errors from batch means.

    While they wait, all of them give up at the rate `give_up_per_s`.
    """
    played = play_cell(cell, player, num_videos=num_videos, seed=seed, give_up_per_s=give_up_per_s)
    return metrics_from_batches("whole cell", played.records)


def play_cell(
    cell: Cell,
    player: Player,
    levels: CapacityLevels | None = None,
    *,
    num_videos: int = 400_000,
    seed: int = 0,
    give_up_per_s: float = 0.0,
) -> CellRun:
    """The same, video by video; `levels` are the capacity over time, that of the cell if absent."""
    check_run(player, num_videos)
    player.check_unlimited()
    if cell.variation > 0:
        raise BadInput("a variable bit rate is played by 'slots'; simulate those, or leave the variation out")
    if levels is None:
        levels = _constant_level() if cell.capacity is None else _markov_levels(cell.capacity)
    patience_s = mean_patience_s(give_up_per_s)
    num_warm_up = int(num_videos * WARM_UP_SHARE)
    lived = empty_records(num_warm_up + num_videos)
    streams = Streams(seed).child("whole cell")
    chances = tuple(streams.stream(name) for name in ("arrivals", "lengths", "capacity", "patience"))
    num_events = play_events(_traffic(cell, player, patience_s), levels, empty_cell(cell.max_users), lived, chances)
    return CellRun(lived.after(num_warm_up), num_events)


def _traffic(cell: Cell, player: Player, patience_s: float) -> CellTraffic:
    users = np.arange(1, cell.max_users + 1)
    return CellTraffic(
        gap_s=1 / cell.arrivals_per_s,
        class_upto=np.cumsum([views.share for views in cell.views]),
        mean_s=np.array([views.mean_s for views in cell.views]),
        fill=np.concatenate(([0.0], cell.speed * efficiency_of(cell) / users)),
        start_s=player.start_s,
        resume_s=player.again_s,
        patience_s=patience_s,
    )


def _constant_level(level: float = 1.0) -> CapacityLevels:
    return CapacityLevels(np.full(1, level), np.full(1, np.inf), np.ones((1, 1)), is_log=True)


def _markov_levels(capacity: Capacity) -> CapacityLevels:
    rates = np.array(capacity.generator, np.float64)
    np.fill_diagonal(rates, 0)
    if not are_connected(rates):
        raise BadInput("some level of the capacity is never reached from another; give rates that connect them all")
    if len(rates) == 1:
        return _constant_level(float(capacity.levels[0]))
    total = rates.sum(axis=1, keepdims=True)
    upto = np.cumsum(rates / total, axis=1)
    return CapacityLevels(np.array(capacity.levels, np.float64), 1 / total[:, 0], upto, is_log=False)


def simulate_log(
    cell: Cell, player: Player, durations_s: Floats, rates_bps: Floats, *, num_videos: int = 400_000, seed: int = 0
) -> QoeMetrics:
    """What viewers experience in `cell` when its capacity follows the log, again and again, scaled to its own mean.

    A run must be long enough to replay the log a few times, or the answer is about the part that was replayed.
    """
    if cell.capacity is not None:
        raise BadInput("the capacity of the cell already changes; leave that out when a throughput log drives the cell")
    played = play_cell(cell, player, log_levels(durations_s, rates_bps), num_videos=num_videos, seed=seed)
    return metrics_from_batches("throughput log", played.records)


def log_levels(durations_s: Floats, rates_bps: Floats) -> CapacityLevels:
    """The capacity of a log, relative to its mean."""
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
