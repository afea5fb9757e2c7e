"""Numba kernel: a whole cell in which every player takes the bit rate that its own buffer allows.

How it works. Between events all buffers move straight, each at its own rate, so every event looks through all videos
for the next thing to happen: a download ends, a wait is over, a buffer runs empty or reaches a border between regions.
A playing buffer at a border that grows below it and falls above it stays there: the player switches levels so that it
receives exactly what it plays.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.random import Generator

from takeup.core.arrays import Floats, Ints
from takeup.core.compiled import inlined, kernel
from takeup.streaming.simulate.compiled.events import CellTraffic, count_blocked, draw_length_s
from takeup.streaming.simulate.video_records import VideoRecords

DOWNLOADED, BORDER, PLAYS, RUNS_EMPTY = range(4)


class BufferRegions(NamedTuple):
    """Region k of the buffer begins at `bottom_s[k]` and ends at `bottom_s[k + 1]`; content comes `pace[k]` as fast."""

    bottom_s: Floats
    pace: Floats


class AdaptiveUsers(NamedTuple):
    """The videos that are downloading, packed at the front; `enough_s` is infinite while a video plays."""

    left_s: Floats
    buffer_s: Floats
    enough_s: Floats
    fill: Floats
    growth: Floats
    waiting_since_s: Floats
    startup_s: Floats
    stall_s: Floats
    region: Ints
    num_stalls: Ints
    video: Ints


def empty_adaptive_users(max_users: int) -> AdaptiveUsers:
    """Allocate the state for the videos of a cell."""
    return AdaptiveUsers(*np.zeros((8, max_users)), *np.zeros((3, max_users), np.int64))


@kernel
def play_adaptive_events(
    traffic: CellTraffic,
    regions: BufferRegions,
    flows: AdaptiveUsers,
    lived: VideoRecords,
    chances: tuple[Generator, Generator],
) -> int:
    """Fill `lived` with the first videos accepted, and follow each to its end; returns the number of events."""
    arrivals, lengths = chances
    num_flows, num_seen, num_left, num_events = 0, 0, 0, 0
    now_s = 0.0
    arrival_in_s = arrivals.standard_exponential() * traffic.gap_s
    while num_left < len(lived.startup_s):
        step_s, first, event = arrival_in_s, -1, DOWNLOADED
        for flow in range(num_flows):
            _set_pace(flows, flow, regions, traffic.fill[num_flows])
            next_s, what = _next_event(flows, flow, regions)
            if next_s < step_s:
                step_s, first, event = next_s, flow, what
        for flow in range(num_flows):
            flows.left_s[flow] -= flows.fill[flow] * step_s
            flows.buffer_s[flow] += flows.growth[flow] * step_s
        now_s += step_s
        arrival_in_s -= step_s
        num_events += 1
        if first < 0:
            arrival_in_s = arrivals.standard_exponential() * traffic.gap_s
            length_s = draw_length_s(traffic.class_upto, traffic.mean_s, lengths)
            if num_flows == len(flows.video):
                count_blocked(lived, num_seen)
            else:
                _admit(flows, num_flows, num_seen, length_s, traffic, now_s)
                num_flows += 1
                num_seen += 1
        elif event == BORDER:
            _cross(flows, first, regions)
        elif event == PLAYS:
            _begin_to_play(flows, first, now_s)
        elif event == RUNS_EMPTY:
            _stall(flows, first, traffic, now_s)
        else:
            num_left += flows.video[first] < len(lived.startup_s)
            num_flows -= 1
            _leave(flows, first, num_flows, now_s, lived)
    return num_events


@inlined
def _set_pace(flows: AdaptiveUsers, flow: int, regions: BufferRegions, fill: float) -> None:
    """How fast the buffer fills and grows; at a border, to which side it goes or whether it stays."""
    region = flows.region[flow]
    if flows.enough_s[flow] < np.inf:
        flows.fill[flow] = flows.growth[flow] = fill * regions.pace[region]
        return
    if region > 0 and flows.buffer_s[flow] == regions.bottom_s[region] and fill * regions.pace[region] <= 1:
        if fill * regions.pace[region - 1] >= 1:
            flows.fill[flow], flows.growth[flow] = 1.0, 0.0
            return
        region -= 1
        flows.region[flow] = region
    flows.fill[flow] = fill * regions.pace[region]
    flows.growth[flow] = flows.fill[flow] - 1


@inlined
def _next_event(flows: AdaptiveUsers, flow: int, regions: BufferRegions) -> tuple[float, int]:
    next_s, event = max(0.0, flows.left_s[flow]) / flows.fill[flow], DOWNLOADED
    region, buffer_s, growth = flows.region[flow], flows.buffer_s[flow], flows.growth[flow]
    if growth > 0:
        border_s = max(0.0, regions.bottom_s[region + 1] - buffer_s) / growth
        plays_s = max(0.0, flows.enough_s[flow] - buffer_s) / growth
        if border_s < next_s:
            next_s, event = border_s, BORDER
        if plays_s < next_s:
            next_s, event = plays_s, PLAYS
    elif growth < 0:
        border_s = max(0.0, buffer_s - regions.bottom_s[region]) / -growth
        if border_s < next_s:
            next_s, event = border_s, BORDER if region > 0 else RUNS_EMPTY
    return next_s, event


@inlined
def _cross(flows: AdaptiveUsers, flow: int, regions: BufferRegions) -> None:
    """Stand at a border, which belongs to the region above it."""
    if flows.growth[flow] > 0:
        flows.region[flow] += 1
    flows.buffer_s[flow] = regions.bottom_s[flows.region[flow]]


@inlined
def _admit(flows: AdaptiveUsers, flow: int, video: int, length_s: float, traffic: CellTraffic, now_s: float) -> None:
    flows.left_s[flow] = length_s
    flows.stall_s[flow] = 0.0
    flows.num_stalls[flow] = 0
    flows.video[flow] = video
    _wait(flows, flow, traffic.start_s, now_s)


@inlined
def _wait(flows: AdaptiveUsers, flow: int, enough_s: float, now_s: float) -> None:
    flows.buffer_s[flow] = 0.0
    flows.region[flow] = 0
    flows.enough_s[flow] = enough_s
    flows.waiting_since_s[flow] = now_s


@inlined
def _begin_to_play(flows: AdaptiveUsers, flow: int, now_s: float) -> None:
    flows.buffer_s[flow] = flows.enough_s[flow]
    _end_wait(flows, flow, now_s)
    flows.enough_s[flow] = np.inf


@inlined
def _end_wait(flows: AdaptiveUsers, flow: int, now_s: float) -> None:
    waited_s = now_s - flows.waiting_since_s[flow]
    if flows.num_stalls[flow]:
        flows.stall_s[flow] += waited_s
    else:
        flows.startup_s[flow] = waited_s


@inlined
def _stall(flows: AdaptiveUsers, flow: int, traffic: CellTraffic, now_s: float) -> None:
    flows.num_stalls[flow] += 1
    _wait(flows, flow, traffic.resume_s, now_s)


@inlined
def _leave(flows: AdaptiveUsers, flow: int, last: int, now_s: float, lived: VideoRecords) -> None:
    """Record the statistics of a video that leaves, and move the last one to its index."""
    video, waits = flows.video[flow], flows.enough_s[flow] < np.inf
    if waits:
        _end_wait(flows, flow, now_s)
    if video < len(lived.startup_s):
        lived.startup_s[video] = flows.startup_s[flow]
        lived.num_stalls[video] = flows.num_stalls[flow]
        lived.stall_s[video] = flows.stall_s[flow]
        lived.finished_early[video] = waits and flows.num_stalls[flow] == 0
    _move(flows, last, flow)


@inlined
def _move(flows: AdaptiveUsers, source: int, target: int) -> None:
    flows.left_s[target] = flows.left_s[source]
    flows.buffer_s[target] = flows.buffer_s[source]
    flows.enough_s[target] = flows.enough_s[source]
    flows.waiting_since_s[target] = flows.waiting_since_s[source]
    flows.startup_s[target] = flows.startup_s[source]
    flows.stall_s[target] = flows.stall_s[source]
    flows.region[target] = flows.region[source]
    flows.num_stalls[target] = flows.num_stalls[source]
    flows.video[target] = flows.video[source]
