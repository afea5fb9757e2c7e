"""Numba kernels: run a given order. A rank starts its next operation as soon as its input has arrived.

No event queue is needed: a message's arrival follows from what its sender did before, so ranks are advanced in
round-robin order, each as far as its inputs are known. When none can advance, the orders deadlock. The order of ranks
matters only where two senders share a wire: there the operation that ends first is processed first. All unprocessed
operations end later, so the wire carries all messages in hand-over order.
"""

from typing import NamedTuple

import numpy as np

from takeup.core.arrays import Ints
from takeup.core.compiled import inlined, inner, kernel

# Numba kernels: a pipeline as arrays, and the effect of sending a message on its wires and its sender's lane ----------

NEVER = 2**62
NO_WIRE = -1


class PipelineArrays(NamedTuple):
    """A pipeline in nanoseconds.

    `lasts[kind, stage, microbatch]` is the duration of an operation. Between stage i and i + 1 messages use the wire
    `forward_wire[i]` or `backward_wire[i]`, none where both are on one rank. The stages of rank r are
    `stage_list[first[r]:first[r + 1]]`. `work[r]` is the total compute time of rank r.
    """

    lasts: Ints
    service: Ints
    latency: Ints
    forward_wire: Ints
    backward_wire: Ints
    num_channels: Ints
    rank_of: Ints
    stage_list: Ints
    first: Ints
    tail: Ints
    work: Ints
    max_sends: int


class Wires(NamedTuple):
    """When every channel of every wire is free, and when the in-flight sends of every rank will have arrived."""

    free: Ints
    under_way: Ints
    num_under_way: Ints


@inner
def free_wires(course: PipelineArrays) -> Wires:
    """Initial state of all wires at the start of an iteration."""
    most = 1
    for wire in range(course.num_channels.size):
        most = max(most, course.num_channels[wire])
    num_ranks = course.first.size - 1
    return Wires(
        np.zeros((max(1, course.num_channels.size), most), np.int64),
        np.zeros((num_ranks, max(1, course.max_sends)), np.int64),
        np.zeros(num_ranks, np.int64),
    )


@inlined
def passes_on(course: PipelineArrays, stage: int, kind: int) -> tuple[int, int]:
    """The stage an operation sends to, and the wire; stage -1 if it sends nothing."""
    if kind == 0 and stage + 1 < course.rank_of.size:
        return stage + 1, course.forward_wire[stage]
    if kind in (1, 3) and stage > 0:
        return stage - 1, course.backward_wire[stage - 1]
    return -1, NO_WIRE


@inlined
def send(course: PipelineArrays, wires: Wires, wire: int, link: int, microbatch: int, handed_over: int) -> int:
    """Put a message on the channel of a wire that is free first; returns the arrival time."""
    channel = 0
    for other in range(1, course.num_channels[wire]):
        if wires.free[wire, other] < wires.free[wire, channel]:
            channel = other
    done = max(handed_over, wires.free[wire, channel]) + course.service[link, microbatch]
    wires.free[wire, channel] = done
    return int(done + course.latency[link])


@inlined
def lane_free_at(course: PipelineArrays, wires: Wires, rank: int, end: int, arrives: int) -> int:
    """When a rank may compute again after an operation that ended, and whose message arrives later (0: none)."""
    if course.max_sends == 0:
        return end
    kept = 0
    soonest: int = NEVER
    for index in range(wires.num_under_way[rank]):
        moment = int(wires.under_way[rank, index])
        if moment > end:
            wires.under_way[rank, kept] = moment
            kept += 1
            soonest = min(soonest, moment)
    if arrives > end:
        wires.under_way[rank, kept] = arrives
        kept += 1
        soonest = min(soonest, arrives)
    wires.num_under_way[rank] = kept
    return int(max(end, soonest)) if kept == course.max_sends else end


DEADLOCK = -1


class _Lanes(NamedTuple):
    """State of the ranks: arrival times of messages, when ranks are free, live micro-batches, and order positions."""

    arrival: Ints
    free: Ints
    live: Ints
    at: Ints
    wires: Wires


@inner
def _make_lanes(course: PipelineArrays, offsets: Ints) -> _Lanes:
    num_ranks, (_, num_stages, count) = course.first.size - 1, course.lasts.shape
    arrival = np.full((2, num_stages, count), NEVER, np.int64)
    arrival[0, 0, :] = 0
    free, live = np.zeros(num_ranks, np.int64), np.zeros(num_ranks, np.int64)
    return _Lanes(arrival, free, live, offsets[:-1].copy(), free_wires(course))


@inlined
def _start_of(course: PipelineArrays, lanes: _Lanes, rank: int, code: int) -> int:
    """When the next operation of a rank starts; NEVER while its input is not known."""
    cell, kind = code // 4, code % 4
    count = course.lasts.shape[2]
    ready = 0 if kind == 2 else lanes.arrival[0 if kind == 0 else 1, cell // count, cell % count]
    return NEVER if ready == NEVER else int(max(lanes.free[rank], ready))


@inlined
def _do(course: PipelineArrays, lanes: _Lanes, rank: int, code: int, start: int, peaks: Ints) -> int:
    """Process an operation; returns its end."""
    cell, kind = code // 4, code % 4
    count = course.lasts.shape[2]
    stage, microbatch = cell // count, cell % count
    end = start + course.lasts[kind, stage, microbatch]
    lanes.live[rank] += 1 if kind == 0 else 0
    peaks[rank] = max(peaks[rank], lanes.live[rank])
    lanes.live[rank] -= 1 if kind >= 2 else 0
    target, wire = passes_on(course, stage, kind)
    arrives = 0
    if target >= 0:
        arrives = end
        if wire != NO_WIRE:
            arrives = send(course, lanes.wires, wire, min(stage, target), microbatch, end)
        lanes.arrival[0 if kind == 0 else 1, target, microbatch] = arrives
    elif kind == 0:
        lanes.arrival[1, stage, microbatch] = end
    lanes.free[rank] = lane_free_at(course, lanes.wires, rank, end, arrives)
    lanes.at[rank] += 1
    return int(end)


@kernel
def replay(course: PipelineArrays, codes: Ints, offsets: Ints, starts: Ints, ends: Ints, peaks: Ints) -> int:
    """Fill in starts, ends and peak live micro-batches by rank; returns the iteration time, or STUCK on deadlock."""
    lanes, num_ranks, count = _make_lanes(course, offsets), course.first.size - 1, course.lasts.shape[2]
    whole, left = 0, codes.size
    while left > 0:
        before = left
        for rank in range(num_ranks):
            while lanes.at[rank] < offsets[rank + 1]:
                index = lanes.at[rank]
                start = _start_of(course, lanes, rank, codes[index])
                if start == NEVER:
                    break
                end = _do(course, lanes, rank, codes[index], start, peaks)
                starts[index], ends[index] = start, end
                whole = max(whole, end + course.tail[codes[index] // 4 // count])
                left -= 1
        if left == before:
            return DEADLOCK
    return whole


@kernel
def replay_in_turn(course: PipelineArrays, codes: Ints, offsets: Ints, starts: Ints, ends: Ints, peaks: Ints) -> int:
    """The same for shared wires: the operation that ends first is processed first."""
    lanes, num_ranks, count = _make_lanes(course, offsets), course.first.size - 1, course.lasts.shape[2]
    whole = 0
    for _ in range(codes.size):
        first, soonest, begins = -1, NEVER, NEVER
        for rank in range(num_ranks):
            if lanes.at[rank] < offsets[rank + 1]:
                code = codes[lanes.at[rank]]
                start = _start_of(course, lanes, rank, code)
                if start < NEVER:
                    end = start + course.lasts[code % 4, code // 4 // count, code // 4 % count]
                    if end < soonest:
                        first, soonest, begins = rank, end, start
        if first < 0:
            return DEADLOCK
        index = lanes.at[first]
        starts[index], ends[index] = begins, _do(course, lanes, first, codes[index], begins, peaks)
        whole = max(whole, soonest + course.tail[codes[index] // 4 // count])
    return whole
