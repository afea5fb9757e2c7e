"""Models of a measured link: a Markov chain of levels on two time scales, for every number of states worth trying.

How it works. Real links change slowly (where the user is) and quickly (fading, other traffic). The slow state of a
second is the quantile of the moving average around it, the fast state the quantile of its rate among the seconds of
that slow state. The level of a joint state is the mean rate found in it, and the rates between states are counted.

Outages, some seconds in a row with almost no throughput, have a separate state: they are rare, so quantiles of time
would mix them with what is merely bad, yet a buffer that survives a bad spell does not survive them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from takeup.core.arrays import Bools, Floats, Ints
from takeup.streaming.model import Capacity

LOWEST_LEVEL = 1e-3  # of the mean; a link that stands still has no finite download time
OUTAGE_LEVEL, SHORTEST_OUTAGE_S = 0.05, 3  # below this share of the mean for at least this long
NUM_SLOW, NUM_FAST, WINDOWS_S = (3, 4, 5, 6, 8), (1, 2, 3), (4, 6, 8, 10, 14)


@dataclass(frozen=True, slots=True)
class LinkModel:
    """One model, and how its states were made."""

    capacity: Capacity
    num_slow: int
    num_fast: int
    window_s: int


def link_models(pieces: Sequence[Floats]) -> Iterator[LinkModel]:
    """All models of measurements whose rates are relative to their mean."""
    rates = np.concatenate(list(pieces))
    works = ~np.concatenate([_outages(piece) for piece in pieces])
    ends = np.cumsum([len(piece) for piece in pieces])
    for window_s in WINDOWS_S:
        averages = np.concatenate([_moving_average(piece, window_s) for piece in pieces])
        for num_slow in NUM_SLOW:
            slow = _slow_states(averages, works, num_slow)
            for num_fast, states in zip(NUM_FAST, _joint_states(rates, slow), strict=True):
                yield LinkModel(_capacity(rates, states, ends), num_slow, num_fast, window_s)


def _moving_average(values: Floats, window_s: int) -> Floats:
    """The mean over a window around every second, shorter at both ends."""
    running = np.concatenate(([0.0], np.cumsum(values)))
    seconds = np.arange(len(values))
    begin = np.maximum(0, seconds - window_s // 2)
    end = np.minimum(len(values), seconds + (window_s + 1) // 2)
    averages: Floats = (running[end] - running[begin]) / (end - begin)
    return averages


def _outages(rates: Floats) -> Bools:
    """Which seconds belong to an outage."""
    is_low = np.concatenate(([False], rates < OUTAGE_LEVEL, [False]))
    begin, end = np.flatnonzero(is_low[1:] != is_low[:-1]).reshape(-1, 2).T
    is_long = end - begin >= SHORTEST_OUTAGE_S
    turns = np.zeros(len(rates) + 1, np.int64)
    turns[begin[is_long]], turns[end[is_long]] = 1, -1
    return np.cumsum(turns[:-1]) > 0


def _slow_states(averages: Floats, works: Bools, num_slow: int) -> Ints:
    """Quantiles of the averages, after a state 0 for outages; it is empty where there are none."""
    cuts = _quantiles(np.sort(averages[works]), num_slow)
    return np.where(works, 1 + np.searchsorted(cuts, averages, side="right"), 0)


def _joint_states(rates: Floats, slow: Ints) -> list[Ints]:
    """For every number of fast states, the pair of slow and fast state of every second, as one number."""
    fast = [np.zeros(len(rates), np.int64) for _ in NUM_FAST]
    for level in range(1, int(slow.max()) + 1):
        inside = np.flatnonzero(slow == level)
        found = rates[inside]
        ordered = np.sort(found)
        for states, count in zip(fast, NUM_FAST, strict=True):
            if count > 1:
                states[inside] = np.searchsorted(_quantiles(ordered, count), found, side="right")
    return [slow * count + states for states, count in zip(fast, NUM_FAST, strict=True)]


def _quantiles(ordered: Floats, count: int) -> Floats:
    """What divides sorted values into `count` equal parts."""
    if len(ordered) == 0:
        return ordered
    places = np.arange(1, count) / count * (len(ordered) - 1)
    below = places.astype(np.int64)
    cuts: Floats = ordered[below] + (places - below) * (
        ordered[np.minimum(below + 1, len(ordered) - 1)] - ordered[below]
    )
    return cuts


def _capacity(rates: Floats, joint: Ints, ends: Ints) -> Capacity:
    counts = np.bincount(joint)
    found = counts > 0
    states = (np.cumsum(found) - 1)[joint]
    levels = np.bincount(joint, rates)[found] / counts[found]
    return Capacity(np.maximum(levels, LOWEST_LEVEL), _generator(states, ends, len(levels)))


def _generator(states: Ints, ends: Ints, num_states: int) -> Floats:
    """Rates per second, counted over all steps within the measurements.

    Where states do not all lead to each other, as after an outage at the very beginning, measurements go round: a step
    from the end of each to its beginning is counted too.
    """
    pairs = states[:-1] * num_states + states[1:]
    pairs[ends[:-1] - 1] = -1  # from one measurement to the next: did not happen
    steps = np.bincount(pairs[pairs >= 0], minlength=num_states**2).reshape(num_states, num_states)
    if not _are_connected(steps):
        np.add.at(steps, (states[ends - 1], states[np.append(0, ends[:-1])]), 1)
    rates: Floats = steps / steps.sum(axis=1)[:, None]
    np.fill_diagonal(rates, 0.0)
    np.fill_diagonal(rates, -rates.sum(axis=1))
    return rates


def _are_connected(steps: Ints) -> bool:
    reached = np.where(steps > 0, 1.0, np.eye(len(steps)))
    for _ in range(len(steps).bit_length()):
        reached = np.minimum(reached @ reached, 1.0)  # in twice as many steps
    return bool(reached.all())
