"""Numba kernel: event-driven simulation of a whole cell, in which every video has its own player."""

from typing import NamedTuple

import numpy as np
from numpy.random import Generator

from takeup.core.arrays import Floats, Ints
from takeup.core.compiled import inlined, kernel
from takeup.streaming.simulate.video_records import VideoRecords

ARRIVES, CAPACITY_CHANGES, DOWNLOADED, HAS_ENOUGH, RUNS_EMPTY, GIVES_UP = range(6)

# How it works. All videos of a cell fill at the same rate, so two clocks serve them all. `received` is the content that
# a video would have if it had been there from the beginning; `balance` is `received` minus the time, which is what
# its buffer would do if it had always played. What lies ahead of a video is then a fixed mark on one of the clocks:
#
#     downloaded      when `received` reaches its mark in `done`
#     enough to play  when `received` reaches its mark in `enough`; only while it waits
#     buffer empty    when `balance` falls to its mark in `empty`; only while it plays
#     out of patience when the time reaches its mark in `leave`; only while it waits, and if viewers give up at all
#
# The marks change only at events of that video. Between events both clocks run straight, so that the next event is the
# nearest of: the nearest mark of each kind, the next arrival, the next change of the capacity. Marks of a kind are kept
# in a heap, so that an event costs the logarithm of the number of videos.

# An indexed min-heap of flows, from which any flow can be removed -----------------------------------------------------
#
# The key of an unused position is infinite, so that the top can be read without checking for an empty heap.


class FlowHeap(NamedTuple):
    """Keys and flows in heap order, the position of every flow (-1 if absent), and the size."""

    key: Floats
    flow: Ints
    place: Ints
    size: Ints


def empty_heap(most: int) -> FlowHeap:
    """Allocate a heap for the flows 0 .. most - 1."""
    return FlowHeap(np.full(most, np.inf), np.zeros(most, np.int64), np.full(most, -1), np.zeros(1, np.int64))


@inlined
def heap_push(heap: FlowHeap, flow: int, key: float) -> None:
    """Insert a flow that is not in the heap."""
    place = heap.size[0]
    heap.size[0] = place + 1
    _sift_up(heap, flow, key, place)


@inlined
def heap_remove(heap: FlowHeap, flow: int) -> None:
    """Remove a flow that is in the heap; the last one fills the gap."""
    place, last = heap.place[flow], heap.size[0] - 1
    key, filler = heap.key[last], heap.flow[last]
    heap.size[0] = last
    heap.key[last] = np.inf
    heap.place[flow] = -1
    if place < last:
        _sift_up(heap, filler, key, _sift_down(heap, key, place, last))


@inlined
def _sift_down(heap: FlowHeap, key: float, place: int, size: int) -> int:
    """Sift a gap down while smaller keys below it move up; its final position."""
    child = 2 * place + 1
    while child < size:
        if child + 1 < size and heap.key[child + 1] < heap.key[child]:
            child += 1
        if heap.key[child] >= key:
            break
        _move_entry(heap, child, place)
        place, child = child, 2 * child + 1
    return place


@inlined
def _sift_up(heap: FlowHeap, flow: int, key: float, place: int) -> None:
    """Sift a flow up from a gap while its key is smaller, and store it."""
    while place > 0 and heap.key[(place - 1) // 2] > key:
        _move_entry(heap, (place - 1) // 2, place)
        place = (place - 1) // 2
    heap.key[place] = key
    heap.flow[place] = flow
    heap.place[flow] = place


@inlined
def _move_entry(heap: FlowHeap, source: int, target: int) -> None:
    heap.key[target] = heap.key[source]
    heap.flow[target] = heap.flow[source]
    heap.place[heap.flow[target]] = target


class CellTraffic(NamedTuple):
    """Arrivals, lengths and rates: `fill[n]` is seconds of video per second when n share a cell at level 1.

    Viewers wait for `patience_s` altogether, on average; it is infinite if they never give up.
    """

    gap_s: float
    class_upto: Floats
    mean_s: Floats
    fill: Floats
    start_s: float
    resume_s: float
    patience_s: float


class CapacityLevels(NamedTuple):
    """The capacity over time, relative to the mean.

    A log (`is_log`) goes through its levels in order, again and again, and stays `hold_s` at each. A Markov chain stays
    `hold_s` on average, then moves to the level whose part of row `upto` holds a random point.
    """

    level: Floats
    hold_s: Floats
    upto: Floats
    is_log: bool


class CellFlows(NamedTuple):
    """The videos that are downloading: heaps of their marks (see above; `empty` has minus the mark on top).

    A video occupies a slot, taken from `free`, which holds its statistics until it leaves. `video` is its arrival
    number.
    """

    done: FlowHeap
    enough: FlowHeap
    empty: FlowHeap
    leave: FlowHeap
    free: Ints
    waiting_since_s: Floats
    patience_s: Floats
    startup_s: Floats
    stall_s: Floats
    num_stalls: Ints
    video: Ints


def empty_cell(max_users: int) -> CellFlows:
    """Allocate the state for `max_users` videos of a cell."""
    done, enough, empty, leave = (empty_heap(max_users) for _ in range(4))
    seconds, counts = np.zeros((4, max_users)), np.zeros((2, max_users), np.int64)
    return CellFlows(done, enough, empty, leave, np.arange(max_users), *seconds, *counts)


@kernel
def play_events(
    traffic: CellTraffic, levels: CapacityLevels, flows: CellFlows, lived: VideoRecords, chances: tuple[Generator, ...]
) -> int:
    """Fill `lived` with the first videos that are accepted, and follow each to its end; returns the number of events.

    Arrivals go on until then, so that the last videos have company too. The generators are for arrivals, lengths,
    capacity and patience: none disturbs the others.
    """
    arrivals, lengths, capacity, patience = chances
    num_flows, num_seen, num_left, num_events = 0, 0, 0, 0
    now_s, received, balance = 0.0, 0.0, 0.0
    place = 0
    arrival_in_s = arrivals.standard_exponential() * traffic.gap_s
    change_in_s = _hold_s(levels, place, capacity)
    while num_left < len(lived.startup_s):
        fill = traffic.fill[num_flows] * levels.level[place]
        step_s, event = arrival_in_s, ARRIVES
        if change_in_s < step_s:
            step_s, event = change_in_s, CAPACITY_CHANGES
        if num_flows > 0:
            step_s, event = _nearest_mark(flows, received, balance, fill, now_s, step_s, event)
        now_s += step_s
        received += fill * step_s
        balance += (fill - 1) * step_s
        arrival_in_s -= step_s
        change_in_s -= step_s
        num_events += 1
        if event == CAPACITY_CHANGES:
            place = _next_place(levels, place, capacity)
            change_in_s = _hold_s(levels, place, capacity)
        elif event == ARRIVES:
            arrival_in_s = arrivals.standard_exponential() * traffic.gap_s
            length_s = draw_length_s(traffic.class_upto, traffic.mean_s, lengths)
            if num_flows == len(flows.video):
                count_blocked(lived, num_seen)
            else:
                flow = flows.free[num_flows]
                flows.patience_s[flow] = draw_patience_s(traffic.patience_s, patience)
                _admit(flows, flow, num_seen, received, length_s, traffic, now_s)
                num_flows += 1
                num_seen += 1
        elif event == HAS_ENOUGH:
            _begin_to_play(flows, flows.enough.flow[0], balance, traffic, now_s)
        elif event == RUNS_EMPTY:
            _stall(flows, flows.empty.flow[0], received, traffic, now_s)
        else:
            flow = flows.done.flow[0] if event == DOWNLOADED else flows.leave.flow[0]
            num_left += flows.video[flow] < len(lived.startup_s)
            num_flows -= 1
            flows.free[num_flows] = flow
            _leave(flows, flow, event == GIVES_UP, now_s, lived)
            if num_flows == 0:
                now_s, received, balance = 0.0, 0.0, 0.0  # only differences count, and small numbers are exact
    return num_events


@inlined
def _nearest_mark(
    flows: CellFlows, received: float, balance: float, fill: float, now_s: float, step_s: float, event: int
) -> tuple[float, int]:
    """The next event, which is `event` in `step_s` unless a mark comes before; rounding never turns time back."""
    done_in_s = _time_to(flows.done.key[0] - received, fill)
    enough_in_s = _time_to(flows.enough.key[0] - received, fill)
    leave_in_s = _time_to(flows.leave.key[0] - now_s, 1.0)
    if done_in_s < step_s:
        step_s, event = done_in_s, DOWNLOADED
    if enough_in_s < step_s:
        step_s, event = enough_in_s, HAS_ENOUGH
    if leave_in_s < step_s:
        step_s, event = leave_in_s, GIVES_UP
    if fill < 1:
        empty_in_s = _time_to(balance + flows.empty.key[0], 1 - fill)
        if empty_in_s < step_s:
            step_s, event = empty_in_s, RUNS_EMPTY
    return step_s, event


@inlined
def _time_to(distance: float, speed: float) -> float:
    """The time to cover a distance; at speed zero it is 0 if already there, otherwise infinite."""
    return distance / speed if distance > 0 else 0.0


@inlined
def _admit(
    flows: CellFlows, flow: int, video: int, received: float, length_s: float, traffic: CellTraffic, now_s: float
) -> None:
    flows.stall_s[flow] = 0.0
    flows.num_stalls[flow] = 0
    flows.video[flow] = video
    heap_push(flows.done, flow, received + length_s)
    _wait(flows, flow, received + traffic.start_s, now_s)


@inlined
def _wait(flows: CellFlows, flow: int, enough: float, now_s: float) -> None:
    flows.waiting_since_s[flow] = now_s
    heap_push(flows.enough, flow, enough)
    if flows.patience_s[flow] < np.inf:
        heap_push(flows.leave, flow, now_s + flows.patience_s[flow])


@inlined
def _end_wait(flows: CellFlows, flow: int, now_s: float) -> None:
    waited_s = now_s - flows.waiting_since_s[flow]
    heap_remove(flows.enough, flow)
    if flows.patience_s[flow] < np.inf:
        heap_remove(flows.leave, flow)
        flows.patience_s[flow] -= waited_s
    if flows.num_stalls[flow]:
        flows.stall_s[flow] += waited_s
    else:
        flows.startup_s[flow] = waited_s


@inlined
def _begin_to_play(flows: CellFlows, flow: int, balance: float, traffic: CellTraffic, now_s: float) -> None:
    _end_wait(flows, flow, now_s)
    heap_push(flows.empty, flow, (traffic.resume_s if flows.num_stalls[flow] else traffic.start_s) - balance)


@inlined
def _stall(flows: CellFlows, flow: int, received: float, traffic: CellTraffic, now_s: float) -> None:
    heap_remove(flows.empty, flow)
    flows.num_stalls[flow] += 1
    _wait(flows, flow, received + traffic.resume_s, now_s)


@inlined
def _leave(flows: CellFlows, flow: int, gave_up: bool, now_s: float, lived: VideoRecords) -> None:
    """Record the statistics of a video that leaves."""
    video, waits = flows.video[flow], flows.enough.place[flow] >= 0
    heap_remove(flows.done, flow)
    if waits:
        _end_wait(flows, flow, now_s)
    else:
        heap_remove(flows.empty, flow)
    if video < len(lived.startup_s):
        lived.startup_s[video] = flows.startup_s[flow]
        lived.num_stalls[video] = flows.num_stalls[flow]
        lived.stall_s[video] = flows.stall_s[flow]
        lived.finished_early[video] = waits and flows.num_stalls[flow] == 0 and not gave_up
        lived.gave_up[video] = gave_up


@inlined
def count_blocked(lived: VideoRecords, num_seen: int) -> None:
    """Count an arrival that was blocked after `num_seen` videos."""
    if num_seen < len(lived.num_blocked):
        lived.num_blocked[num_seen] += 1


@inlined
def draw_length_s(class_upto: Floats, mean_s: Floats, lengths: Generator) -> float:
    """Draw the length of the next video."""
    view = _interval_index(class_upto, lengths.random()) if len(class_upto) > 1 else 0
    return float(lengths.standard_exponential() * mean_s[view])


@inlined
def draw_patience_s(mean_s: float, patience: Generator) -> float:
    """Draw the total patience of the next viewer; without a draw if viewers never give up."""
    return float(patience.standard_exponential() * mean_s) if mean_s < np.inf else np.inf


@inlined
def _hold_s(levels: CapacityLevels, place: int, capacity: Generator) -> float:
    stretch = 1.0 if levels.is_log else capacity.standard_exponential()
    return float(levels.hold_s[place] * stretch)


@inlined
def _next_place(levels: CapacityLevels, place: int, capacity: Generator) -> int:
    if levels.is_log:
        return place + 1 if place + 1 < len(levels.level) else 0
    return _interval_index(levels.upto[place], capacity.random())


@inlined
def _interval_index(upto: Floats, point: float) -> int:
    """Which part of the unit interval holds the point."""
    part = 0
    while part < len(upto) - 1 and upto[part] <= point:
        part += 1
    return part
