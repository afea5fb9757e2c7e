"""Evaluate schedules on a profile: timelines, generated and searched schedules, lower bounds, and plans."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from takeup.core.arrays import Floats, Ints
from takeup.errors import BadInput
from takeup.training.pipelines.profile import Profile
from takeup.training.pipelines.schedule import PipelinePlan, Schedule, Timeline
from takeup.training.pipelines.timing.exchange import improve_order
from takeup.training.pipelines.timing.replay import DEADLOCK, NEVER, NO_WIRE, PipelineArrays, replay, replay_in_turn
from takeup.training.pipelines.timing.search import GOOD_ENOUGH, OrderLimits, make_order, search, smallest_caps

# Convert a profile to the arrays of the kernels: nanoseconds, wires between ranks, and the stages of every rank -------

SECOND = 10**9  # in nanoseconds, the unit of the kernels


def pipeline_arrays(profile: Profile, factors: Floats | None = None) -> PipelineArrays:
    """The profile as arrays; `factors[kind, stage, microbatch]` scale single operations."""
    lasts = _lasts(profile, factors)
    forward, backward, num_channels = _wires(profile)
    sizes = np.asarray(profile.sizes or (1.0,) * profile.num_microbatches)
    service_s = np.array([link.service_s for link in profile.links]).reshape(-1, 1) * sizes
    latency_s = np.array([link.latency_s + profile.hop_s for link in profile.links])
    stage_list = np.array([stage for stages in profile.chunks for stage in stages], np.int64)
    first = np.cumsum([0, *map(len, profile.chunks)]).astype(np.int64)
    by_stage = lasts[:3].sum(axis=(0, 2))
    rank_of = np.array(profile.placement, np.int64)
    work = np.bincount(rank_of, by_stage, profile.num_ranks).astype(np.int64)
    tails = _nanoseconds(np.array([stage.tail_s for stage in profile.stages]))
    max_sends = min(profile.max_sends or 0, 3 * profile.num_stages * profile.num_microbatches)
    return PipelineArrays(
        lasts,
        _nanoseconds(service_s),
        _nanoseconds(latency_s),
        forward,
        backward,
        num_channels,
        rank_of,
        stage_list,
        first,
        tails,
        work,
        max_sends,
    )


def _lasts(profile: Profile, factors: Floats | None) -> Ints:
    """Durations of F, I, W and B by stage and micro-batch; without a split backward, all of it is in I."""
    times = [(each.forward_s, each.backward_s, each.weight_s) for each in profile.stages]
    forward, backward, weight = np.array(times).T
    if not profile.can_split:
        backward, weight = backward + weight, np.zeros_like(weight)
    sizes = np.asarray(profile.sizes or (1.0,) * profile.num_microbatches)
    seconds = np.array([forward, backward, weight, backward + weight])[:, :, None] * sizes + profile.host_s
    if not profile.can_split:
        seconds[2] = 0.0
    if factors is not None:
        seconds[:3] *= factors
        seconds[3] = seconds[1] + seconds[2] - profile.host_s * profile.can_split
    return _nanoseconds(seconds)


def _wires(profile: Profile) -> tuple[Ints, Ints, Ints]:
    """One wire from every rank to each rank it sends to, shared by its stages; or one for both directions."""
    numbers: dict[tuple[int, int], int] = {}
    channels: dict[int, int] = {}
    forward: list[int] = []
    backward: list[int] = []
    for link, here, after in zip(profile.links, profile.placement, profile.placement[1:], strict=False):
        both = (min(here, after), max(here, after)) if link.half_duplex else None
        for ends, found in ((both or (here, after), forward), (both or (after, here), backward)):
            wire = NO_WIRE if here == after else numbers.setdefault(ends, len(numbers))
            found.append(wire)
            channels.setdefault(wire, link.num_channels)
    counts = [channels[wire] for wire in range(len(numbers))]
    return np.array(forward, np.int64), np.array(backward, np.int64), np.array(counts, np.int64)


def _nanoseconds(seconds: Floats) -> Ints:
    return np.rint(seconds * SECOND).astype(np.int64)


# Lower bounds on the iteration time of any schedule, from the work of ranks, the load of links, and memory ------------
#
# work     a rank cannot start before the first activation reaches it, and then has all its work to do
# return   after a stage sends the last gradient, it still has to travel to the first stage
# link     all messages must pass, after the first activation arrives and before the last message's remaining path
# memory   until the first gradient is back, a stage can only fill its memory with forwards, and so again for each of
#          the groups of micro-batches that fit into memory


def least_iteration_s(profile: Profile) -> float:
    """Lower bound on the iteration time, in seconds."""
    return least_nanoseconds(profile, pipeline_arrays(profile)) / SECOND


def least_nanoseconds(profile: Profile, course: PipelineArrays) -> int:
    """The largest of all bounds; `course` holds the arrays of the profile."""
    ways = _CriticalPaths(course)
    return max(ways.work(), ways.back_again(), ways.links(), ways.memory(profile) if profile.one_stage_per_rank else 0)


class _CriticalPaths:
    """Time from the start to a stage and back without contention."""

    def __init__(self, course: PipelineArrays) -> None:
        self.course = course
        self.forward, self.backward = course.lasts[:2].min(axis=2)
        service = course.service.min(axis=1) if course.service.size else np.zeros(0, np.int64)
        self.hop = np.where(course.forward_wire == NO_WIRE, 0, service + course.latency)
        self.head = _sums(self.forward[:-1] + self.hop)
        """From the start of the iteration to the first activation, by stage."""
        # after the last input gradient of the first stage; for a fused backward, its remainder
        self.last_weight = np.minimum(course.lasts[2, 0], course.lasts[3, 0] - course.lasts[1, 0]).min()
        self.home = _sums(self.hop + self.backward[:-1]) + self.last_weight + course.tail[0]
        """From the end of a backward to the end of the iteration, by stage."""
        turned = self.head[-1] + self.forward[-1]
        self.back = turned + _sums((self.backward[1:] + self.hop)[::-1])[::-1]
        """From the start of the iteration to the first gradient, by stage."""

    def work(self) -> int:
        """For every rank: its first activation, its work, and the shortest of its tails."""
        course = self.course
        per_stage = (course.lasts[0] + np.minimum(course.lasts[3], course.lasts[1] + course.lasts[2])).sum(axis=1)
        order, begins = course.stage_list, course.first[:-1]
        head, tail = (np.minimum.reduceat(values[order], begins) for values in (self.head, course.tail))
        return int((head + np.add.reduceat(per_stage[order], begins) + tail).max())

    def back_again(self) -> int:
        """For every stage: its first activation, all forwards and input gradients, and the path back."""
        return int((self.head + self.course.lasts[:2].sum(axis=(0, 2)) + self.home).max())

    def links(self) -> int:
        """For every link and direction: the path to it, all messages but one, and the remaining path of the last."""
        course, found = self.course, 0
        whole_way = self.back[0] + self.backward[0] + self.last_weight + course.tail[0]
        for wires in (course.forward_wire, course.backward_wire):
            for link, wire in enumerate(wires.tolist()):
                if wire != NO_WIRE:
                    load = course.service[link]
                    waits = -(-int(load.sum()) // int(course.num_channels[wire])) - int(load.max())
                    found = max(found, int(whole_way) + waits)
        return found

    def memory(self, profile: Profile) -> int:
        """For every stage: the first gradient, then all work that did not fit into memory before it."""
        course = self.course
        caps, count = np.array(profile.live_limits()), profile.num_microbatches
        backwards = np.minimum(course.lasts[3], course.lasts[1] + course.lasts[2])
        first = self.back + (count - caps) * self.forward + backwards.sum(axis=1) + course.tail
        # Memory of a micro-batch is free again after its way to the last stage and back, for the next but `caps`.
        backward, there_and_back = backwards.min(axis=1), self.back - self.head
        cycle = np.maximum(there_and_back, caps * self.forward) + backward
        begun, left = self.head + (count - 1) // caps * cycle, count - (count - 1) // caps * caps
        work = begun + left * (self.forward + backward) + course.tail
        home = begun + np.maximum(left * self.forward, there_and_back) + left * self.backward + self.home
        return int(max(first.max(), work.max(), home.max()))


def _sums(steps: Ints) -> Ints:
    return np.concatenate([[0], np.cumsum(steps)]).astype(np.int64)


# Run a schedule on a profile, or generate one greedily: both give times to the nanosecond -----------------------------

FEW_ORDERS = 60
MOST_EXCHANGES, FEW_EXCHANGES, EXCHANGED_OPERATIONS = 1000, 40, 120_000  # a few milliseconds
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
        raise BadInput("the orders of the ranks wait for each other, so the schedule never ends; plan it again")
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
) -> Schedule:
    """The greedy order: every rank prefers a backward, then a forward, then a weight gradient.

    Stage i computes `warmups[i]` forwards before its first backward, and has at most `flights[i]` micro-batches with a
    pending backward; rank r holds at most `caps[r]` until their weight gradients. None is no limit.
    """
    limits, codes = _limits(profile, warmups, caps, flights), _empty_codes(profile)
    if make_order(pipeline_arrays(profile), limits, codes) >= NEVER:
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
    most = min(MOST_EXCHANGES, EXCHANGED_OPERATIONS // codes.size)
    if most >= FEW_EXCHANGES and _is_bound_by_memory(profile) and best > bound + bound // GOOD_ENOUGH:
        limits = limits._replace(caps=np.array(profile.live_limits()))
        best, more = improve_order(course, limits.caps, bound, most, codes)
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


def _is_bound_by_memory(profile: Profile) -> bool:
    """Whether exchanges of operations are tried: memory limits a rank, each has one stage, each way its own wire."""
    is_limited = min(profile.live_limits()) < profile.num_microbatches
    return is_limited and profile.one_stage_per_rank and not any(link.half_duplex for link in profile.links)


def _deadlock_error(limits: OrderLimits) -> BadInput:
    return BadInput(
        f"with warm-ups {limits.warmup.tolist()} and room for {limits.caps.tolist()} micro-batches the ranks wait for "
        "each other; give warm-ups that do not grow along the pipeline, and room for them"
    )


def _limits(
    profile: Profile, warmups: Sequence[int], caps: Sequence[int] | None, flights: Sequence[int] | None
) -> OrderLimits:
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


# From a schedule to a plan: simulate it on its profile, and compare the result with the lower bound -------------------


def make_plan(
    planner: str,
    profile: Profile,
    schedule: Schedule,
    reasons: tuple[str, ...] = (),
    num_evaluations: int = 1,
    bound_s: float | None = None,
) -> PipelinePlan:
    """The plan for this schedule; rejects a profile whose memory cannot hold a single micro-batch.

    The bound is computed if it is not given.
    """
    profile.live_limits()
    timeline = timeline_of(schedule, profile)
    return PipelinePlan(
        planner,
        profile,
        schedule,
        timeline.iteration_s,
        least_iteration_s(profile) if bound_s is None else bound_s,
        timeline.peak_live,
        reasons,
        num_evaluations,
    )
