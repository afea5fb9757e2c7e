"""Fit a Markov-modulated capacity with two time scales to measured throughput.

How it works. Real links change slowly (where the user is) and quickly (fading, other traffic). The slow state of a
second is the quantile of the moving average around it, the fast state the quantile of its own rate among the seconds of
that slow state. The level of a joint state is the mean rate found in it, and the rates between states are counted.

How many states, and how long the average is, is chosen by what the model is for. A single viewer who has the link alone
is followed through the measurement from every second on, for several bitrates and start thresholds; that needs no
model. The choice whose exact answers for the same single viewer come closest wins. Matching the autocorrelation
instead prefers models with too long bad times, because it weighs good times as much as bad ones.

Which bitrates the viewer has, and how errors are weighed, was settled by looking at two public collections of logs (3G
and 4G) and several variants; how well it does on links of another kind is not known.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
import numpy.typing as npt

from takeup.errors import BadInput
from takeup.streaming.model import Capacity, Chain
from takeup.streaming.policies.riccati import RiccatiSolver

__all__ = ["CapacityFit", "fit_capacity", "lone_viewer_stalls"]

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

LOWEST_LEVEL = 1e-3  # of the mean; a link that stands still has no finite download time
NUM_SLOW, NUM_FAST, WINDOWS_S = (3, 4, 5, 6, 8), (1, 2, 3), (4, 6, 8, 10, 14)
SPEEDS = (0.8, 1.0, 1.2, 1.6, 2.2)  # of the link over the bitrate of the lone viewer
THRESHOLDS_S = (3.0, 8.0, 20.0)
MEAN_VIDEO_S = 60.0
MOST_STARTS = 4_000  # seconds to follow the lone viewer from; more tell little new
LEAST_CHANCE = 1e-3  # rarer stalls than this are not weighed up
HORIZON_S = 8 * MEAN_VIDEO_S  # of content; hardly a video is longer
EXTRA_SECONDS = round(2 * HORIZON_S / min(SPEEDS))  # a short log is walked through again and again


@dataclass(frozen=True, slots=True)
class CapacityFit:
    """A fitted capacity and what was chosen for it; `misfit` is its relative error for a lone viewer."""

    capacity: Capacity
    mean_bps: float
    num_slow: int
    num_fast: int
    window_s: int
    misfit: float


def fit_capacity(pieces: Sequence[Floats]) -> CapacityFit:
    """The best model of measurements, each an array of the mean rate in every second."""
    measured = [np.asarray(piece, np.float64) for piece in pieces if len(piece) > 1]
    if not measured or not np.concatenate(measured).max() > 0:
        raise BadInput("the measurement holds less than two seconds of throughput; give a longer one")
    mean_bps = float(np.concatenate(measured).mean())
    relative = [piece / mean_bps for piece in measured]
    truth = lone_viewer_stalls(relative)
    fits = [
        _scored(relative, truth, mean_bps, num_slow, num_fast, window_s)
        for num_slow, num_fast, window_s in product(NUM_SLOW, NUM_FAST, WINDOWS_S)
    ]
    return min(fits, key=lambda fit: (fit.misfit, fit.num_slow * fit.num_fast))


def _scored(
    pieces: list[Floats], truth: Floats, mean_bps: float, num_slow: int, num_fast: int, window_s: int
) -> CapacityFit:
    capacity = _model(pieces, num_slow, num_fast, window_s)
    return CapacityFit(capacity, mean_bps, num_slow, num_fast, window_s, _misfit(capacity, truth))


# The model ------------------------------------------------------------------------------------------------------------


def _model(pieces: list[Floats], num_slow: int, num_fast: int, window_s: int) -> Capacity:
    rates = np.concatenate(pieces)
    averages = np.concatenate([_moving_average(piece, window_s) for piece in pieces])
    slow = _quantile_index(averages, averages, num_slow)
    fast = np.zeros(len(rates), np.int64)
    for level in range(num_slow):
        inside = slow == level
        fast[inside] = _quantile_index(rates[inside], rates[inside], num_fast)
    found, states = np.unique(slow * num_fast + fast, return_inverse=True)
    levels = np.bincount(states, rates) / np.bincount(states)
    return Capacity(np.maximum(levels, LOWEST_LEVEL), _generator(states, pieces, len(found)))


def _moving_average(values: Floats, window_s: int) -> Floats:
    """The mean over a window around every second, shorter at both ends."""
    running = np.concatenate(([0.0], np.cumsum(values)))
    seconds = np.arange(len(values))
    begin = np.maximum(0, seconds - window_s // 2)
    end = np.minimum(len(values), seconds + (window_s + 1) // 2)
    averages: Floats = (running[end] - running[begin]) / (end - begin)
    return averages


def _quantile_index(values: Floats, population: Floats, count: int) -> Ints:
    """Which of `count` equal parts of the population each value lies in."""
    if count == 1 or len(population) == 0:
        return np.zeros(len(values), np.int64)
    return np.searchsorted(np.quantile(population, np.arange(1, count) / count), values, side="right")


def _generator(states: Ints, pieces: list[Floats], num_states: int) -> Floats:
    """Rates per second, counted over all steps within the measurements."""
    ends = np.cumsum([len(piece) for piece in pieces])[:-1]
    within = np.ones(len(states) - 1, np.bool_)
    within[ends - 1] = False  # the step from one measurement to the next did not happen
    pairs = states[:-1][within] * num_states + states[1:][within]
    steps = np.bincount(pairs, minlength=num_states**2).reshape(num_states, num_states).astype(np.float64)
    rates: Floats = steps / np.maximum(1, steps.sum(axis=1))[:, None]
    rates[steps.sum(axis=1) == 0] = 1.0 / num_states  # only seen at an end: go anywhere
    np.fill_diagonal(rates, 0.0)
    np.fill_diagonal(rates, -rates.sum(axis=1))
    return rates


# The lone viewer ------------------------------------------------------------------------------------------------------


def lone_viewer_stalls(pieces: list[Floats]) -> Floats:
    """P(at least one stall) of a viewer alone on the link, by speed and start threshold; rates are relative.

    The viewer starts at many seconds; that the video may end before the stall is integrated exactly.
    """
    rates = np.concatenate(pieces)
    starts = np.arange(0, len(rates), max(1, len(rates) // MOST_STARTS))
    speeds, thresholds_s = (grid[..., None] for grid in np.meshgrid(SPEEDS, THRESHOLDS_S, indexing="ij"))
    stalled_at = _content_at_first_stall(rates, starts, speeds, thresholds_s)
    chances: Floats = np.exp(-stalled_at / MEAN_VIDEO_S).mean(axis=-1)
    return chances


def _content_at_first_stall(rates: Floats, starts: Ints, speeds: Floats, thresholds_s: Floats) -> Floats:
    """Seconds of video downloaded when the buffer first runs empty, infinity if that is too far away to matter."""
    shape = np.broadcast_shapes(speeds.shape, (1, 1, len(starts)))
    shape = np.broadcast_shapes(shape, thresholds_s.shape)
    content, buffer, found = np.zeros(shape), np.zeros(shape), np.full(shape, np.inf)
    playing = np.zeros(shape, np.bool_)
    for second in range(len(rates) + EXTRA_SECONDS):
        arriving = speeds * rates[(starts + second) % len(rates)]
        fills = ~playing & (buffer + arriving >= thresholds_s)
        plays_s = np.where(fills, 1 - (thresholds_s - buffer) / np.maximum(arriving, 1e-12), playing)
        content, buffer, playing = content + arriving, buffer + arriving - plays_s, playing | fills
        empties = playing & (buffer < 0) & np.isinf(found) & (content <= HORIZON_S)
        late_s = np.where(empties, -buffer / np.maximum(1 - arriving, 1e-12), 0.0)
        found = np.where(empties, content - late_s * arriving, found)
        if ((content > HORIZON_S) | (found < np.inf)).all():
            break
    return found


def _misfit(capacity: Capacity, truth: Floats) -> float:
    model = np.empty_like(truth)
    for row, speed in enumerate(SPEEDS):
        solution = RiccatiSolver().solution(_lone_chain(capacity, speed))
        model[row] = [solution.stall_probability(threshold_s) for threshold_s in THRESHOLDS_S]
    # Between absolute and relative errors: common stalls count more than rare ones, of which few were measured.
    return float((np.abs(model - truth) / np.sqrt(np.maximum(truth, LEAST_CHANCE))).sum() / np.sqrt(truth).sum())


def _lone_chain(capacity: Capacity, speed: float) -> Chain:
    """A viewer who has the link alone sees the capacity itself."""
    n = len(capacity.levels)
    system = np.vstack([capacity.generator.T, np.ones(n)])
    law = np.maximum(0.0, np.linalg.lstsq(system, np.append(np.zeros(n), 1.0), rcond=None)[0])
    fill = capacity.levels * speed
    return Chain(capacity.generator, fill / MEAN_VIDEO_S, fill, law / law.sum())
