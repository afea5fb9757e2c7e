"""Run a schedule on a profile, or generate one greedily: both give times to the nanosecond."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from takeup.core.arrays import Floats, Ints
from takeup.errors import BadInput
from takeup.training.model.pipeline import Profile
from takeup.training.model.plan import Timeline
from takeup.training.model.schedule import Schedule
from takeup.training.timing.bounds import least_nanoseconds
from takeup.training.timing.course import SECOND, pipeline_arrays
from takeup.training.timing.fast.generate import OrderLimits, make_order
from takeup.training.timing.fast.replay import DEADLOCK, replay, replay_in_turn
from takeup.training.timing.fast.search import search, smallest_caps
from takeup.training.timing.fast.traffic import NEVER

FEW_ORDERS = 60
MANY_OPERATIONS = 6_000_000  # keeps planning of the largest pipelines below a second


def timeline_of(schedule: Schedule, profile: Profile, factors: Floats | None = None) -> Timeline:
    """Start and end of every operation of the schedule; rejects orders that deadlock."""
    if schedule.placement != profile.placement or schedule.num_microbatches != profile.num_microbatches:
        raise BadInput(
            f"the schedule is for {schedule.num_microbatches} micro-batches on stages placed {schedule.placement}, the "
            f"profile for {profile.num_microbatches} on {profile.placement}; give a schedule made for this pipeline"
        )
    codes = np.concatenate(schedule.codes)
    offsets = np.cumsum([0, *(order.size for order in schedule.codes)]).astype(np.int64)
    starts, ends = np.empty_like(codes), np.empty_like(codes)
    peaks = np.zeros(profile.num_ranks, np.int64)
    run = replay_in_turn if any(link.half_duplex for link in profile.links) else replay
    whole = run(pipeline_arrays(profile, factors), codes, offsets, starts, ends, peaks)
    if whole == DEADLOCK:
        raise BadInput("the orders of the ranks wait for each other, so the schedule never ends; plan it anew")
    return Timeline(
        schedule,
        tuple(np.split(starts / SECOND, offsets[1:-1])),
        tuple(np.split(ends / SECOND, offsets[1:-1])),
        whole / SECOND,
        tuple(peaks.tolist()),
    )


def generate_schedule(
    profile: Profile,
    warmups: Sequence[int],
    caps: Sequence[int] | None = None,
    flights: Sequence[int] | None = None,
    factors: Floats | None = None,
) -> Schedule:
    """The greedy order: every rank prefers a backward, then a forward, then a weight gradient.

    Stage i computes `warmups[i]` forwards before its first backward, and has at most `flights[i]` micro-batches with a
    pending backward; rank r holds at most `caps[r]` until their weight gradients. None is no limit.
    """
    limits, codes = _limits(profile, warmups, caps, flights), _empty_codes(profile)
    if make_order(pipeline_arrays(profile, factors), limits, codes) >= NEVER:
        raise _deadlock_error(limits)
    return _schedule_of(profile, codes)


class SearchedSchedule(NamedTuple):
    """The best order of a search, its warm-ups and memory limits, its time, and the number of orders generated."""

    schedule: Schedule
    warmups: tuple[int, ...]
    caps: tuple[int, ...]
    iteration_s: float
    bound_s: float
    num_evaluations: int


def search_schedule(
    profile: Profile, warmups: Sequence[int], caps: Sequence[int], most: int, *, lean: bool = True
) -> SearchedSchedule:
    """Search around the given warm-ups with a limited number of orders; `lean` then lowers memory at no cost."""
    course, limits = pipeline_arrays(profile), _limits(profile, warmups, caps, None)
    bound, codes = least_nanoseconds(profile, course), _empty_codes(profile)
    most = min(most, max(FEW_ORDERS, MANY_OPERATIONS // codes.size))
    kept_back = profile.num_microbatches.bit_length() if lean else 0
    best, evaluations = search(course, limits, bound, max(1, most - kept_back), codes)
    if best >= NEVER:
        raise _deadlock_error(limits)
    if lean:
        best, more = smallest_caps(course, limits, best, codes)  # less memory may even be faster
        evaluations += more
    schedule = _schedule_of(profile, codes)
    return SearchedSchedule(
        schedule,
        tuple(limits.warmup.tolist()),
        tuple(limits.caps.tolist()),
        best / SECOND,
        bound / SECOND,
        evaluations,
    )


def _deadlock_error(limits: OrderLimits) -> BadInput:
    return BadInput(
        f"with warm-ups {limits.warmup.tolist()} and room for {limits.caps.tolist()} micro-batches the ranks wait for "
        "each other; give warm-ups that do not grow along the pipeline, and room for them"
    )


def _limits(
    profile: Profile, warmups: Sequence[int], caps: Sequence[int] | None, flights: Sequence[int] | None
) -> OrderLimits:
    """Limits as kernel arrays."""
    count = profile.num_microbatches
    return OrderLimits(
        np.array(warmups, np.int64),
        np.array(flights or [count] * profile.num_stages, np.int64),
        np.array(caps or [count] * profile.num_ranks, np.int64),
    )


def _empty_codes(profile: Profile) -> Ints:
    most = max(map(len, profile.chunks))
    return np.empty((profile.num_ranks, 3 * most * profile.num_microbatches), np.int64)


def _schedule_of(profile: Profile, codes: Ints) -> Schedule:
    """The schedule in the kernel's arrays; where the backward cannot be split, I becomes B and W is dropped."""
    orders = [
        row[: 3 * len(stages) * profile.num_microbatches] for row, stages in zip(codes, profile.chunks, strict=True)
    ]
    if not profile.can_split:
        kept = [order[order % 4 != 2] for order in orders]
        orders = [np.where(order % 4 == 1, order + 2, order) for order in kept]
    return Schedule(tuple(orders), profile.placement, profile.num_microbatches)
