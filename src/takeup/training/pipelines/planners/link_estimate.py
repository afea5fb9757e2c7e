"""Estimate a pipeline from measurements: operation times, and latency and service of links, without a common clock.

How it works. The sender of a message records the hand-over time, the receiver the time it became usable, each by its
own clock. Over the two directions of a link, the fastest messages differ by twice the clock offset, if both directions
are equally fast. With the offset removed, a delay is latency + service + wait, and the wait follows from the hand-over
times once the service is known: the backlog of earlier messages not yet served. So candidate services are tried, and
the one with the smallest residual is taken. Where no message ever waited, service and latency cannot be distinguished,
and all of the delay counts as latency.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from takeup.core.arrays import Floats
from takeup.errors import BadInput
from takeup.training.pipelines.profile import Link

NUM_TRIED = 65
NUM_ROUNDS = 5
CLEARLY = 0.98  # a service must reduce the residual below this share of that without
NOISE_SHARE = 0.02  # and by more than this share of the delay, which jitter alone may explain


class MessageStamps(NamedTuple):
    """Hand-over times of messages in one direction (sender's clock) and times usable (receiver's clock)."""

    handed_s: Floats
    usable_s: Floats


class LinkEstimate(NamedTuple):
    """A link, the clock offset of its far end, and the mean residual of the estimate."""

    link: Link
    offset_s: float
    rest_s: float


def typical_s(samples_s: Sequence[float], window: int = 32) -> float:
    """Median of the last samples, which is robust against outliers."""
    recent = _finite("samples_s", samples_s[-window:])
    return float(np.median(recent))


def clock_offset_s(there: MessageStamps, back: MessageStamps) -> float:
    """How far the clock at the far end is ahead, from the fastest message of each direction."""
    forth_s, home_s = (_delays("stamps", stamps) for stamps in (there, back))
    return float((forth_s.min() - home_s.min()) / 2)


def estimate_link(there: MessageStamps, back: MessageStamps) -> LinkEstimate:
    """Latency and service of a link, from messages in both directions, each in hand-over order."""
    offset_s = clock_offset_s(there, back)
    pairs = [
        (np.asarray(there.handed_s), _delays("there", there) - offset_s),
        (np.asarray(back.handed_s), _delays("back", back) + offset_s),
    ]
    low, high = 0.0, max(float(delays_s.max()) for _, delays_s in pairs)
    for _ in range(NUM_ROUNDS):
        tried = np.linspace(low, high, NUM_TRIED)
        rests_s, latencies_s = _rests(pairs, tried)
        best = int(np.argmin(rests_s))
        low, high = tried[max(0, best - 1)], tried[min(NUM_TRIED - 1, best + 1)]
    (plain_rest_s,), (plain_latency_s,) = _rests(pairs, np.zeros(1))
    if rests_s[best] >= min(CLEARLY * plain_rest_s, plain_rest_s - NOISE_SHARE * plain_latency_s):
        return LinkEstimate(Link(max(0.0, float(plain_latency_s))), offset_s, float(plain_rest_s))
    link = Link(max(0.0, float(latencies_s[best])), float(tried[best]))
    return LinkEstimate(link, offset_s, float(rests_s[best]))


def _rests(pairs: list[tuple[Floats, Floats]], services_s: Floats) -> tuple[Floats, Floats]:
    """For every candidate service time, the mean residual and the corresponding latency."""
    plain_s = np.concatenate([_plain_s(handed_s, delays_s, services_s) for handed_s, delays_s in pairs], axis=1)
    latencies_s = np.median(plain_s, axis=1)
    return np.abs(plain_s - latencies_s[:, None]).mean(axis=1), latencies_s


def _plain_s(handed_s: Floats, delays_s: Floats, services_s: Floats) -> Floats:
    """Delays without service and wait; the wait is the backlog of earlier messages, drained between hand-overs."""
    surplus_s = services_s[:, None] * np.arange(handed_s.size) - handed_s
    waits_s = surplus_s - np.minimum.accumulate(surplus_s, axis=1)
    return np.asarray(delays_s - services_s[:, None] - waits_s)


def _delays(name: str, stamps: MessageStamps) -> Floats:
    handed_s, usable_s = _finite(name, stamps.handed_s), _finite(name, stamps.usable_s)
    if handed_s.size != usable_s.size:
        raise BadInput(f"{name}: found {handed_s.size} hand-overs and {usable_s.size} arrivals; give pairs")
    if (np.diff(handed_s) < 0).any():
        raise BadInput(f"{name}: hand-overs are not in order of time; sort the messages")
    return usable_s - handed_s


def _finite(name: str, values: npt.ArrayLike) -> Floats:
    array = np.asarray(values, np.float64)
    if array.ndim != 1 or not array.size or not np.isfinite(array).all():
        raise BadInput(f"{name}: expected at least one number, and all of them finite; leave out what was not measured")
    return array
