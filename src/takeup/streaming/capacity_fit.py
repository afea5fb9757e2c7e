"""Fit a Markov-modulated capacity with two time scales to measured throughput."""

from collections.abc import Iterator, Sequence

import numpy as np

from takeup.core.arrays import Bools, Floats, Ints
from takeup.errors import BadInput
from takeup.streaming.model import Capacity, CapacityFit, Chain
from takeup.streaming.numerics import are_connected
from takeup.streaming.solvers.fluid import DoublingSolver
from takeup.streaming.throughput import quantiles

LOWEST_LEVEL = 1e-3  # of the mean; a link that stands still has no finite download time
OUTAGE_LEVEL, SHORTEST_OUTAGE_S = 0.05, 3  # below this share of the mean for at least this long
NUM_SLOW, NUM_FAST, WINDOWS_S = (2, 3, 4, 6, 8), (1, 2, 3), (4, 8, 14)

# Models of a measured link: a Markov chain of levels on two time scales, for every number of states worth trying ------
#
# How it works. Real links change slowly (where the user is) and quickly (fading, other traffic). The slow state of a
# second is the quantile of the moving average around it, the fast state the quantile of its rate among the seconds of
# that slow state. The level of a joint state is the mean rate found in it, and the rates between states are counted.
#
# Outages, some seconds in a row with almost no throughput, have a separate state: they are rare, so quantiles of time
# would mix them with what is merely bad, yet a buffer that survives a bad spell does not survive them.


def link_models(pieces: Sequence[Floats]) -> Iterator[tuple[Capacity, int, int, int]]:
    """All models of measurements whose rates are relative to their mean: slow states, fast states, moving average."""
    rates = np.concatenate(list(pieces))
    works = ~np.concatenate([_outages(piece) for piece in pieces])
    ends = np.cumsum([len(piece) for piece in pieces])
    for window_s in WINDOWS_S:
        averages = np.concatenate([_moving_average(piece, window_s) for piece in pieces])
        for num_slow in NUM_SLOW:
            slow = _slow_states(averages, works, num_slow)
            for num_fast in NUM_FAST:
                yield _capacity(rates, _joint_states(rates, slow, num_fast), ends), num_slow, num_fast, window_s


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
    return np.where(works, 1 + np.searchsorted(_cuts(averages[works], num_slow), averages, side="right"), 0)


def _joint_states(rates: Floats, slow: Ints, num_fast: int) -> Ints:
    """The pair of slow and fast state of every second, as one number; outages have one fast state."""
    fast = np.zeros(len(rates), np.int64)
    for level in range(1, int(slow.max()) + 1):
        inside = slow == level
        fast[inside] = np.searchsorted(_cuts(rates[inside], num_fast), rates[inside], side="right")
    return slow * num_fast + fast


def _cuts(values: Floats, count: int) -> Floats:
    """What divides the values into `count` equal parts."""
    if len(values) == 0 or count == 1:
        return np.zeros(0)
    return quantiles(values, np.arange(1, count) / count)


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
    if not are_connected(steps):
        np.add.at(steps, (states[ends - 1], states[np.append(0, ends[:-1])]), 1)
    rates: Floats = steps / steps.sum(axis=1)[:, None]
    np.fill_diagonal(rates, 0.0)
    np.fill_diagonal(rates, -rates.sum(axis=1))
    return rates


# A single viewer with exclusive use of a link: how often the video stalls, in a measurement and in a model of it ------
#
# How it works. In the measurement the viewer starts at many seconds; all are followed together, second by second. That
# the video may end before the stall is integrated exactly: it is longer than x with probability exp(-x / mean). In the
# model the viewer sees the capacity itself as a chain, which `doubling` solves.

SPEEDS = (0.8, 1.0, 1.2, 1.6, 2.2)  # of the link over the bitrate
THRESHOLDS_S = (3.0, 8.0, 20.0)
MEAN_VIDEO_S = 60.0
MOST_STARTS = 500  # seconds to start at; more tell little new
HORIZON_S = 8 * MEAN_VIDEO_S  # of content; hardly a video is longer
LONGEST_S = round(2 * HORIZON_S / min(SPEEDS))  # a short log is walked through again and again
EMPTY_S = 1e-9  # a buffer that is short by less is rounding, not empty


def measured_stalls(pieces: Sequence[Floats]) -> Floats:
    """P(at least one stall) by speed and start threshold; rates are relative to their mean."""
    rates = np.concatenate(list(pieces))
    starts = np.arange(0, len(rates), max(1, len(rates) // MOST_STARTS))
    threshold_s = np.array(THRESHOLDS_S)[:, None]
    content, buffer = np.zeros((2, len(SPEEDS), len(THRESHOLDS_S), len(starts)))
    playing, stalled_at = np.zeros(content.shape, np.bool_), np.full(content.shape, np.inf)
    for second in range(LONGEST_S):
        arrives = np.multiply.outer(SPEEDS, rates[(starts + second) % len(rates)])[:, None]
        starts_now = ~playing & (buffer + arrives >= threshold_s)
        plays_s = np.where(starts_now, 1 - (threshold_s - buffer) / np.maximum(arrives, EMPTY_S), playing)
        playing |= starts_now
        after = buffer + arrives - plays_s
        empty = (after < -EMPTY_S) & (content + arrives <= HORIZON_S)
        stall = content + arrives * buffer / np.maximum(1 - arrives, EMPTY_S)
        stalled_at = np.where(empty & np.isinf(stalled_at), stall, stalled_at)
        buffer, content = after, content + arrives
        if content.min() > HORIZON_S:
            break
    return np.asarray(np.exp(-stalled_at / MEAN_VIDEO_S).mean(axis=-1), np.float64)


def modelled_stalls(capacity: Capacity) -> Floats:
    """P(at least one stall) of the same viewer on the model, by speed and start threshold."""
    law, chances = settled_law(capacity), []
    for speed in SPEEDS:
        fill = capacity.levels * speed
        solution = DoublingSolver().solution(Chain(capacity.generator, fill / MEAN_VIDEO_S, fill, law))
        chances.append([solution.stall_probability(threshold_s) for threshold_s in THRESHOLDS_S])
    return np.array(chances)


def settled_law(capacity: Capacity) -> Floats:
    """The share of time at every level; one of several such laws if the levels do not all lead to each other."""
    num = len(capacity.levels)
    system = np.vstack([capacity.generator.T, np.ones(num)])
    law = np.maximum(np.linalg.lstsq(system, np.append(np.zeros(num), 1.0), rcond=None)[0], 0.0)
    return np.asarray(law / law.sum(), np.float64)


# The choice among the models ------------------------------------------------------------------------------------------
#
# How it works. How many states the model has, and how long its moving average is, is chosen by what it is for. A single
# viewer, alone on the link, is followed through the measurement from every second on, for several bitrates and start
# thresholds; that needs no model (`measured_stalls`). Of all models (`link_models`) the one wins whose answers for the
# same viewer come closest. Matching the autocorrelation instead prefers models with too long bad times, because it
# weighs good times as much as bad ones.
#
# Which bitrates the viewer has, how errors are weighed and what counts as an outage was settled by looking at two
# public collections of logs (3G and 4G) and several variants; how well it does on links of another kind is not known.
# Many models are about as good for the lone viewer and differ by several per cent for a cell. Averaging their
# predictions was no better on logs not fitted to and worse on those fitted to; taking the smallest of them was worse on
# both.

LEAST_CHANCE = 1e-3  # rarer stalls than this are not weighed up


def fit_capacity(pieces: Sequence[Floats]) -> CapacityFit:
    """The best model of measurements, each an array of the mean rate in every second."""
    measured = [np.asarray(piece, np.float64) for piece in pieces if len(piece) > 1]
    if not measured or not np.concatenate(measured).max() > 0:
        raise BadInput("the measurement holds less than two seconds of throughput; give a longer one")
    mean_bps = float(np.concatenate(measured).mean())
    relative = [piece / mean_bps for piece in measured]
    truth = measured_stalls(relative)
    fits = [
        CapacityFit(capacity, mean_bps, num_slow, num_fast, window_s, _misfit(capacity, truth), tuple(relative))
        for capacity, num_slow, num_fast, window_s in link_models(relative)
    ]
    return min(fits, key=lambda fit: (fit.misfit, fit.num_slow * fit.num_fast))


def _misfit(capacity: Capacity, truth: Floats) -> float:
    # Between absolute and relative errors: common stalls count more than rare ones, of which few were measured.
    errors = np.abs(modelled_stalls(capacity) - truth) / np.sqrt(np.maximum(truth, LEAST_CHANCE))
    return float(errors.sum() / np.sqrt(truth).sum())
