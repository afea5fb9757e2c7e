"""Healthy jobs of 10,000 steps: at most one false event under noise of four kinds, in which a slow rank is still named.

Four ranks compute and reduce gradients together; steps take some 100 ms, and clocks are off.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from takeup.core.arrays import Floats
from takeup.training.stragglers.contract import CALL, STEP_GROUP, CallLog, Operation, SlowdownEvent
from takeup.training.stragglers.detect.detector import StragglerDetector

NUM_RANKS, NUM_STEPS, STEP_S, TRANSFER_S, CHUNK = 4, 10_000, 0.1, 0.005, 50
SLOW_RANK, SLOW_FROM, NUM_WITH_SLOW = 2, 200, 400
Draw = np.random.Generator


def white(random: Draw, num_steps: int) -> Floats:
    return STEP_S * np.exp(0.02 * random.standard_normal((num_steps, NUM_RANKS)))


def correlated(random: Draw, num_steps: int) -> Floats:
    """Autoregressive noise of 4 %, of which 0.8 stays from one step to the next."""
    waves = 0.04 * random.standard_normal((num_steps, NUM_RANKS))
    for step in range(1, num_steps):
        waves[step] = 0.8 * waves[step - 1] + 0.6 * waves[step]
    return white(random, num_steps) * np.exp(waves)


def variable_lengths(random: Draw, num_steps: int) -> Floats:
    """Four micro-batches in a step, whose lengths vary by a quarter, on every rank by itself."""
    lengths = np.exp(0.25 * random.standard_normal((num_steps, NUM_RANKS, 4))).mean(axis=2)
    times_s: Floats = white(random, num_steps) * lengths
    return times_s


def busy_host(random: Draw, num_steps: int) -> Floats:
    """In one step of ten a rank waits for a core, for 30 ms on average: one step of three is longer."""
    shape = num_steps, NUM_RANKS
    return white(random, num_steps) + np.where(random.random(shape) < 0.1, random.exponential(0.03, shape), 0.0)


NOISE: dict[str, Callable[[Draw, int], Floats]] = {
    "white": white,
    "correlated": correlated,
    "variable lengths": variable_lengths,
    "busy host": busy_host,
}


def logs_of(own_s: Floats, random: Draw) -> list[CallLog]:
    """The calls of all ranks, given their own work by step: a reduction, then a step of the optimizer."""
    ends_s = 1.0 + np.cumsum(own_s.max(axis=1) + TRANSFER_S)
    begins_s = np.concatenate([[1.0], ends_s[:-1]])[:, None] + own_s
    numbers, groups, logs = np.arange(len(own_s)), {1: tuple(range(NUM_RANKS)), STEP_GROUP: ()}, []
    for rank, clock_ns in enumerate(random.integers(0, 10**12, NUM_RANKS).tolist()):
        calls = np.zeros((len(own_s), 2), CALL)
        calls["operation"], calls["group"] = (Operation.ALL_REDUCE, Operation.STEP), (1, STEP_GROUP)
        calls["peer"], calls["number"], calls["size_bytes"] = -1, numbers[:, None], (4 << 20, 0)
        ended_ns = np.rint(1e9 * ends_s).astype(np.int64) + clock_ns
        calls["began_ns"] = np.stack(
            [np.rint(1e9 * begins_s[:, rank]).astype(np.int64) + clock_ns, ended_ns + 1], axis=1
        )
        calls["ended_ns"] = ended_ns[:, None] + (0, 1)
        logs.append(CallLog(rank, calls.reshape(-1), groups))
    return logs


def events_of(own_s: Floats, random: Draw) -> list[SlowdownEvent]:
    """What the detector says, which gets the calls of some steps at a time."""
    logs, detector, events = logs_of(own_s, random), StragglerDetector(), list[SlowdownEvent]()
    for first in range(0, 2 * len(own_s), 2 * CHUNK):
        events += detector.see([CallLog(log.rank, log.calls[first : first + 2 * CHUNK], log.groups) for log in logs])
    assert detector.num_iterations == len(own_s) - 1
    return events


@pytest.mark.parametrize("noise", NOISE)
def test_a_healthy_job_of_ten_thousand_steps_has_at_most_one_event(noise: str) -> None:
    random = np.random.default_rng([7, list(NOISE).index(noise)])

    events = events_of(NOISE[noise](random, NUM_STEPS), random)

    assert len(events) <= 1, [event.sentence() for event in events]


@pytest.mark.parametrize("noise", NOISE)
def test_a_rank_that_becomes_slow_is_named_in_the_same_noise(noise: str) -> None:
    random = np.random.default_rng([8, list(NOISE).index(noise)])
    own_s = NOISE[noise](random, NUM_WITH_SLOW)
    own_s[SLOW_FROM:, SLOW_RANK] *= 1.5

    slow = [event for event in events_of(own_s, random) if event.is_slow]

    assert {rank for event in slow for suspect in event.suspects for rank in suspect.ranks} == {SLOW_RANK}
    assert slow[0].declared - SLOW_FROM <= 40
