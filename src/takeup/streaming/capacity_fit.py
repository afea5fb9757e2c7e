"""Fit a Markov-modulated capacity with two time scales to measured throughput."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from takeup.core.arrays import Bools, Floats, Ints
from takeup.errors import BadInput
from takeup.streaming.model import Capacity, CapacityFit, Chain

LOWEST_LEVEL = 1e-3  # of the mean; a link that stands still has no finite download time
OUTAGE_LEVEL, SHORTEST_OUTAGE_S = 0.05, 3  # below this share of the mean for at least this long
NUM_SLOW, NUM_FAST, WINDOWS_S = (3, 4, 5, 6, 8), (1, 2, 3), (4, 6, 8, 10, 14)

# Models of a measured link: a Markov chain of levels on two time scales, for every number of states worth trying ------
#
# How it works. Real links change slowly (where the user is) and quickly (fading, other traffic). The slow state of a
# second is the quantile of the moving average around it, the fast state the quantile of its rate among the seconds of
# that slow state. The level of a joint state is the mean rate found in it, and the rates between states are counted.
#
# Outages, some seconds in a row with almost no throughput, have a separate state: they are rare, so quantiles of time
# would mix them with what is merely bad, yet a buffer that survives a bad spell does not survive them.


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


# A single viewer with exclusive use of a link: how often the video stalls, in a measurement and in a model of it ------
#
# How it works. In the measurement the viewer starts at many seconds. With R(t) the content that has come by second t
# and s the speed of the link over the bitrate, play begins when s R has grown by the threshold, and the buffer runs
# empty where s R(t) - t first falls below the level it had then. All starts are searched together, in a tree of
# minima. That the video may end before the stall is integrated exactly: it is longer than x with probability exp(-x /
# mean).
#
# In the model the viewer sees the capacity itself as a chain (see `phases`). Its rates in content are C =
# diag(1/level) G minus the end of the video, so the law at the start of play is pi exp(C q / s) exp(-q / mean); W(q) 1
# is a sum over the decaying eigenvectors of the motion. Eigenvectors are quick and nearly always good to ten digits or
# so, which is plenty for a choice among models; where they do not form a basis, probabilities come out wrong, and
# `doubling` answers instead.

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
    from takeup.streaming.solvers.fluid import DoublingSolver  # seldom needed

    chances = []
    for speed in SPEEDS:
        fill = levels * speed
        solution = DoublingSolver().solution(Chain(rates, fill / MEAN_VIDEO_S, fill, law))
        chances.append([solution.stall_probability(threshold_s) for threshold_s in THRESHOLDS_S])
    return np.array(chances)


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
    truth = measured_stalls(relative).mean(axis=-1)
    fits = [
        CapacityFit(
            model.capacity,
            mean_bps,
            model.num_slow,
            model.num_fast,
            model.window_s,
            _misfit(model.capacity, truth),
            tuple(relative),
        )
        for model in link_models(relative)
    ]
    return min(fits, key=lambda fit: (fit.misfit, fit.num_slow * fit.num_fast))


def _misfit(capacity: Capacity, truth: Floats) -> float:
    # Between absolute and relative errors: common stalls count more than rare ones, of which few were measured.
    errors = np.abs(modelled_stalls(capacity) - truth) / np.sqrt(np.maximum(truth, LEAST_CHANCE))
    return float(errors.sum() / np.sqrt(truth).sum())
