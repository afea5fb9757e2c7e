"""Fit a Markov-modulated capacity with two time scales to a throughput log.

How it works. Real links change slowly (where the user is) and quickly (fading, other traffic). The slow state of a
second is the quantile of the moving average around it, the fast state the quantile of its own rate among the seconds of
that slow state. The level of a joint state is the mean rate found in it, and the rates between states are counted.
How many states, and how long the average is, is chosen by how well the model's autocorrelation follows the log's: a
playout buffer integrates the rate, so what matters is how long good and bad times last.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

import numpy as np
import numpy.typing as npt

from takeup.errors import BadInput
from takeup.streaming.model import Capacity
from takeup.streaming.traces.logs import ThroughputLog

__all__ = ["Fit", "fit_capacity"]

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

LOWEST_LEVEL = 1e-3  # of the mean; a link that stands still has no finite download time
LAGS_S = np.array([1, 2, 3, 5, 8, 12, 20, 30, 45, 60, 90, 120])


@dataclass(frozen=True, slots=True)
class Fit:
    """A fitted capacity, what was chosen for it, and how far its autocorrelation is from the log's at worst."""

    capacity: Capacity
    mean_bps: float
    num_slow: int
    num_fast: int
    window_s: int
    misfit: float


def fit_capacity(
    log: ThroughputLog,
    num_slow: tuple[int, ...] = (3, 4, 5),
    num_fast: tuple[int, ...] = (2, 3),
    windows_s: tuple[int, ...] = (6, 10, 16, 24),
) -> Fit:
    """The best of the models with these numbers of states and these moving averages."""
    pieces = [piece for piece in log.per_second() if len(piece) > 1]
    if not pieces or np.concatenate(pieces).max() <= 0:
        raise BadInput(f"{log.name} holds less than two seconds of throughput; give a longer log")
    fits = [_fit(pieces, *choice) for choice in product(num_slow, num_fast, windows_s)]
    return min(fits, key=lambda fit: fit.misfit)


def _fit(pieces: list[Floats], num_slow: int, num_fast: int, window_s: int) -> Fit:
    states = _states(pieces, num_slow, num_fast, window_s)
    rates = np.concatenate(pieces)
    mean_bps = float(rates.mean())
    states, num_states = _renumbered(states)
    joined = np.concatenate(states)
    levels = np.bincount(joined, rates, num_states) / np.bincount(joined, minlength=num_states) / mean_bps
    generator = _generator(states, num_states)
    capacity = Capacity(np.maximum(levels, LOWEST_LEVEL), generator)
    misfit = float(np.abs(_model_correlation(capacity, rates.var() / mean_bps**2) - _correlation(pieces)).max())
    return Fit(capacity, mean_bps, num_slow, num_fast, window_s, misfit)


def _states(pieces: list[Floats], num_slow: int, num_fast: int, window_s: int) -> list[Ints]:
    averages = [_moving_average(piece, window_s) for piece in pieces]
    slow = _quantile_index(averages, np.concatenate(averages), num_slow)
    all_slow, all_rates = np.concatenate(slow), np.concatenate(pieces)
    states = []
    for piece, where in zip(pieces, slow, strict=True):
        fast = np.zeros(len(piece), np.int64)
        for level in range(num_slow):
            inside = where == level
            fast[inside] = _quantile_index([piece[inside]], all_rates[all_slow == level], num_fast)[0]
        states.append(where * num_fast + fast)
    return states


def _moving_average(values: Floats, window_s: int) -> Floats:
    """The mean over a window around every second, shorter at both ends."""
    running = np.concatenate(([0.0], np.cumsum(values)))
    seconds = np.arange(len(values))
    begin = np.maximum(0, seconds - window_s // 2)
    end = np.minimum(len(values), seconds + (window_s + 1) // 2)
    return (running[end] - running[begin]) / (end - begin)


def _quantile_index(values: list[Floats], population: Floats, count: int) -> list[Ints]:
    """Which of `count` equal parts of the population each value lies in."""
    if len(population) == 0:
        return [np.zeros(len(part), np.int64) for part in values]
    borders = np.quantile(population, np.arange(1, count) / count)
    return [np.searchsorted(borders, part, side="right") for part in values]


def _renumbered(states: list[Ints]) -> tuple[list[Ints], int]:
    """The states that occur, numbered without gaps."""
    found = np.unique(np.concatenate(states))
    return [np.searchsorted(found, piece) for piece in states], len(found)


def _generator(states: list[Ints], num_states: int) -> Floats:
    """Rates per second, counted over all steps within the measurements."""
    steps = np.zeros((num_states, num_states))
    for piece in states:
        np.add.at(steps, (piece[:-1], piece[1:]), 1)
    seconds = np.maximum(1, steps.sum(axis=1))
    rates = steps / seconds[:, None]
    np.fill_diagonal(rates, 0.0)
    lonely = rates.sum(axis=1) == 0  # only seen at the end of a measurement: go anywhere, at once
    rates[lonely] = 1.0 / num_states
    np.fill_diagonal(rates, 0.0)
    np.fill_diagonal(rates, -rates.sum(axis=1))
    return rates


def _correlation(pieces: list[Floats]) -> Floats:
    """The autocorrelation of the log, pooled over its measurements."""
    rates = np.concatenate(pieces)
    mean, variance = rates.mean(), max(rates.var(), 1e-300)
    products = [
        np.concatenate(
            [(piece[:-lag] - mean) * (piece[lag:] - mean) for piece in pieces if len(piece) > lag] or [[0.0]]
        )
        for lag in LAGS_S
    ]
    return np.array([product.mean() / variance for product in products])


def _model_correlation(capacity: Capacity, variance: float) -> Floats:
    """The autocorrelation of the fitted capacity over the variance of the log."""
    n = len(capacity.levels)
    system = np.vstack([capacity.generator.T, np.ones(n)])
    law = np.linalg.lstsq(system, np.append(np.zeros(n), 1.0), rcond=None)[0]
    centred = capacity.levels - law @ capacity.levels
    step, moved, found = np.eye(n) + capacity.generator, centred.copy(), {}
    for lag in range(1, int(LAGS_S.max()) + 1):
        moved = step @ moved
        found[lag] = float((law * centred) @ moved) / max(variance, 1e-300)
    return np.array([found[int(lag)] for lag in LAGS_S])
