"""A single viewer with exclusive use of a link: how often the video stalls, in a measurement and in a model of it.

How it works. In the measurement the viewer starts at many seconds. With R(t) the content that has come by second t and
s the speed of the link over the bitrate, play begins when s R has grown by the threshold, and the buffer runs empty
where s R(t) - t first falls below the level it had then. All starts are searched together, in a tree of minima. That
the video may end before the stall is integrated exactly: it is longer than x with probability exp(-x / mean).

In the model the viewer sees the capacity itself as a chain (see `phases`). Its rates in content are C = diag(1/level) G
minus the end of the video, so the law at the start of play is pi exp(C q / s) exp(-q / mean); W(q) 1 is a sum over the
decaying eigenvectors of the motion. Eigenvectors are quick and nearly always good to ten digits or so, which is plenty
for a choice among models; where they do not form a basis, probabilities come out wrong, and `doubling` answers instead.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from takeup.core.arrays import Floats, Ints
from takeup.streaming.model import Capacity, Chain

SPEEDS = (0.8, 1.0, 1.2, 1.6, 2.2)  # of the link over the bitrate
THRESHOLDS_S = (3.0, 8.0, 20.0)
MEAN_VIDEO_S = 60.0
MOST_STARTS = 4_000  # seconds to start at; more tell little new
HORIZON_S = 8 * MEAN_VIDEO_S  # of content; hardly a video is longer
EXTRA_SECONDS = round(2 * HORIZON_S / min(SPEEDS))  # a short log is walked through again and again
MOST_SECONDS = 100_000  # to follow a viewer through a long log
EMPTY_S = 1e-9  # a buffer that is short by less is rounding, not empty
TOLERANCE = 1e-6  # of a probability, before eigenvectors are mistrusted
LEAST_DRIFT = 1e-6  # a state that moves the buffer by less is taken to move it by this much


def measured_stalls(pieces: Sequence[Floats]) -> Floats:
    """P(at least one stall) from every start, by speed and start threshold; rates are relative to their mean."""
    rates = np.concatenate(list(pieces))
    starts = np.arange(0, len(rates), max(1, len(rates) // MOST_STARTS))
    num_seconds = len(rates) + min(len(rates), MOST_SECONDS) + EXTRA_SECONDS
    received = np.concatenate(([0.0], np.cumsum(np.resize(rates, num_seconds))))
    stalled_at = [[_content_at_stall(received, starts, speed, q) for q in THRESHOLDS_S] for speed in SPEEDS]
    chances: Floats = np.exp(-np.array(stalled_at) / MEAN_VIDEO_S)
    return chances


def _content_at_stall(received: Floats, starts: Ints, speed: float, threshold_s: float) -> Floats:
    """Seconds of video downloaded when the buffer first runs empty, infinity if that is too far away to matter."""
    enough = received[starts] + threshold_s / speed
    begin = np.searchsorted(received, enough)
    plays = begin < len(received)
    begin = np.minimum(begin, len(received) - 1)
    plays_from_s = begin - (received[begin] - enough) / np.maximum(received[begin] - received[begin - 1], 1e-12)
    balance = speed * received - np.arange(len(received))
    low = speed * received[starts] - plays_from_s
    end = first_below(balance, begin, low - EMPTY_S)
    stalls = plays & (end < len(received))
    end = np.minimum(end, len(received) - 1)
    arriving = speed * (received[end] - received[end - 1])
    content = speed * (received[end] - received[starts])
    late_s = (low - balance[end]) / np.maximum(1 - arriving, 1e-12)
    return np.where(stalls & (content <= HORIZON_S), content - late_s * arriving, np.inf)


def first_below(values: Floats, begin: Ints, level: Floats) -> Ints:
    """For every search the first index from `begin` on whose value is below `level`, or the number of values.

    A tree holds the minima of 1, 2, 4 .. values. A search climbs while the blocks to its right are too high, then goes
    down to the leftmost value that is low enough.
    """
    tree = [values]
    while len(tree[-1]) > 1:
        padded = np.append(tree[-1], np.inf) if len(tree[-1]) % 2 else tree[-1]
        tree.append(padded.reshape(-1, 2).min(axis=1))
    place, height = begin.copy(), np.full(len(begin), -1)
    for rung, minima in enumerate(tree):
        looks = (height < 0) & ((place % 2 == 1) | (rung == len(tree) - 1)) & (place < len(minima))
        height[looks & (minima[np.minimum(place, len(minima) - 1)] < level)] = rung
        place = np.where(height < 0, (place + 1) // 2, place)
    for rung in range(len(tree) - 1, 0, -1):
        minima, inside = tree[rung - 1], height >= rung
        left = np.where(inside, 2 * place, 0)
        place = np.where(inside, left + (minima[left] >= level), place)
    return np.where(height < 0, len(values), place)


def modelled_stalls(capacity: Capacity) -> Floats:
    """P(at least one stall) of the same viewer on the model, by speed and start threshold."""
    order = np.argsort(capacity.levels)
    levels, rates = capacity.levels[order], capacity.generator[np.ix_(order, order)]
    law = _stationary_law(rates)
    try:
        laws, risks = _laws_at_start(levels, rates, law), _risks(levels, rates)
    except np.linalg.LinAlgError:
        return _by_doubling(levels, rates, law)
    alive = np.exp(-np.array(THRESHOLDS_S) / MEAN_VIDEO_S)
    wrong = max(np.abs(laws.sum(axis=-1) - 1).max(), -laws.min(), -risks.min(), risks.max() - 1)
    if not wrong < TOLERANCE:
        return _by_doubling(levels, rates, law)
    chances: Floats = np.clip((laws * risks).sum(axis=-1) * alive, 0.0, 1.0)
    return chances


def _stationary_law(rates: Floats) -> Floats:
    """A stationary law of the model; not unique if the chain is not irreducible."""
    num = len(rates)
    law = np.linalg.lstsq(np.vstack([rates.T, np.ones(num)]), np.append(np.zeros(num), 1.0), rcond=None)[0]
    positive: Floats = np.maximum(law, 0.0)
    return positive / float(positive.sum())


def _laws_at_start(levels: Floats, rates: Floats, law: Floats) -> Floats:
    """The law of the state when play begins, if the video is long enough, by speed and threshold."""
    values, vectors = np.linalg.eig(rates / levels[:, None])
    content = np.divide.outer(THRESHOLDS_S, SPEEDS).T
    decay = np.exp(values * content[..., None]) * (law @ vectors)
    laws: Floats = np.linalg.solve(vectors.T, decay.reshape(-1, len(levels)).T).T.real
    return laws.reshape(*content.shape, -1)


def _risks(levels: Floats, rates: Floats) -> Floats:
    """P(the buffer runs empty | state) with the threshold in the buffer, by speed and threshold; levels rise."""
    fill = np.multiply.outer(SPEEDS, levels)
    drift = np.where(np.abs(fill - 1) < LEAST_DRIFT, LEAST_DRIFT, fill - 1)
    unit = np.eye(len(levels))
    motion = (fill[..., None] * unit / MEAN_VIDEO_S - rates) / drift[..., None]
    values, vectors = np.linalg.eig(motion)
    order = np.argsort(values.real, axis=1)
    values, vectors = np.take_along_axis(values, order, axis=1), np.take_along_axis(vectors, order[:, None], axis=2)
    falls = drift < 0  # the first of the states, and as many decaying directions
    boundary = np.where(falls[:, :, None] & falls[:, None, :], vectors, unit)
    weights = np.linalg.solve(boundary, falls[..., None].astype(complex))
    decay = np.exp(np.where(falls, values, 0.0)[..., None] * THRESHOLDS_S)
    risks: Floats = np.swapaxes((vectors @ (weights * decay)).real, 1, 2)
    return risks


def _by_doubling(levels: Floats, rates: Floats, law: Floats) -> Floats:
    from takeup.streaming.policies.doubling import DoublingSolver  # seldom needed

    chances = []
    for speed in SPEEDS:
        fill = levels * speed
        solution = DoublingSolver().solution(Chain(rates, fill / MEAN_VIDEO_S, fill, law))
        chances.append([solution.stall_probability(threshold_s) for threshold_s in THRESHOLDS_S])
    return np.array(chances)
