"""Numba kernels: a pipeline as arrays, and the effect of sending a message on its wires and its sender's lane."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from takeup.core.arrays import Ints
from takeup.core.compiled import inlined, inner

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
