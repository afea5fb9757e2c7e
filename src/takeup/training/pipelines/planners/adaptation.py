"""When to switch the schedule of a running job: only if a gain is predicted, with hysteresis.

The predicted iteration time of the current schedule, under the links as measured, is compared with that of a new plan.
If links became worse, a gain of more than 3 % suffices. If they became better, the gain must last for 20 iterations,
because a link that is healthy for a moment may be slow again. Every switch has a new version, so that all ranks can
agree on the iteration in which they switch.

Messages of a slow link are sent through a separate path, so that compute does not wait behind its sends; the link
keeps it until the delay is half as long.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from takeup.core.arrays import Floats
from takeup.errors import BadInput
from takeup.training.pipelines.profile import Link, Profile

NUM_TRIED = 65
NUM_ROUNDS = 5
CLEARLY = 0.98  # a service must reduce the residual below this share of that without
NOISE_SHARE = 0.02  # and by more than this share of the delay, which jitter alone may explain

# Estimate a pipeline from measurements: operation times, and latency and service of links, without a common clock -----
#
# How it works. The sender of a message records the hand-over time, the receiver the time it became usable, each by its
# own clock. Over the two directions of a link, the fastest messages differ by twice the clock offset, if both
# directions are equally fast. With the offset removed, a delay is latency + service + wait, and the wait follows from
# the hand-over times once the service is known: the backlog of earlier messages not yet served. So candidate services
# are tried, and the one with the smallest residual is taken. Where no message ever waited, service and latency cannot
# be distinguished, and all of the delay counts as latency.


class MessageStamps(NamedTuple):
    """Hand-over times of messages in one direction (sender's clock) and times usable (receiver's clock)."""

    handed_s: Floats
    usable_s: Floats


class LinkEstimate(NamedTuple):
    """A link, the clock offset of its far end, and the mean residual of the estimate."""

    link: Link
    offset_s: float
    rest_s: float


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


# When to switch the schedule of a running job: only if a gain is predicted, with hysteresis ---------------------------


@dataclass(frozen=True, slots=True)
class SwitchRule:
    """Gain required for a switch, for how many iterations if links recover, and the delay percentile to plan for.

    A link is slow if its delay is more than `slow_share` of the shortest operation at either of its ends.
    """

    least_gain_share: float = 0.03
    patience: int = 20
    percent: float = 75.0
    slow_share: float = 0.25


@dataclass(frozen=True, slots=True)
class SwitchState:
    """The version in use, its expected time when adopted, and for how many iterations another was better."""

    version: int
    expected_s: float
    num_better: int = 0


@dataclass(frozen=True, slots=True)
class SwitchDecision:
    """Whether to switch at the next iteration boundary, why, and the situation after that."""

    switch: bool
    reason: str
    after: SwitchState


def decide_switch(rule: SwitchRule, now: SwitchState, current_s: float, candidate_s: float) -> SwitchDecision:
    """Compare the predicted times of the current schedule and a new one; call once per iteration."""
    for name, value in (("current_s", current_s), ("candidate_s", candidate_s)):
        if not (np.isfinite(value) and value > 0):
            raise BadInput(f"{name} is {value:g}; give the predicted time of an iteration, above zero")
    gain_share = 1 - candidate_s / current_s
    if gain_share <= rule.least_gain_share:
        return SwitchDecision(False, f"a gain of {gain_share:.1%} is too small", replace(now, num_better=0))
    if current_s > now.expected_s * (1 + rule.least_gain_share):
        return _switch(now, candidate_s, f"links became slower: {gain_share:.1%} less with a new schedule")
    if now.num_better + 1 >= rule.patience:
        return _switch(now, candidate_s, f"{gain_share:.1%} less for {rule.patience} iterations")
    waiting = replace(now, num_better=now.num_better + 1)
    return SwitchDecision(
        False, f"{gain_share:.1%} less, for {waiting.num_better} of {rule.patience} iterations", waiting
    )


def _switch(now: SwitchState, candidate_s: float, reason: str) -> SwitchDecision:
    return SwitchDecision(True, reason, SwitchState(now.version + 1, candidate_s))


def link_delay_s(rule: SwitchRule, recent_s: Sequence[float]) -> float:
    """The delay to plan for: a percentile of recent delays, not the last one."""
    if not len(recent_s):
        raise BadInput("no delay was measured; give at least one")
    return float(np.percentile(recent_s, rule.percent))


def slow_links(rule: SwitchRule, profile: Profile, before: frozenset[int]) -> frozenset[int]:
    """The slow links, with hysteresis: a link that was slow `before` has half the limit."""
    shortest_s = [min(stage.forward_s, stage.backward_s) for stage in profile.stages]
    return frozenset(
        number
        for number, link in enumerate(profile.links)
        if link.delay_s > rule.slow_share * (0.5 if number in before else 1.0) * min(shortest_s[number : number + 2])
    )
