"""Numba kernel: a whole cell from event to event, every video with a player of its own.

How it works. All videos of a cell fill at the same rate, so two clocks serve them all. `received` is the content that
a video would have if it had been there from the beginning; `balance` is `received` minus the time, which is what
its buffer would do if it had always played. What lies ahead of a video is then a fixed mark on one of the clocks:

    downloaded      when `received` reaches `done_at`
    enough to play  when `received` reaches `enough_at`; infinite while it plays
    buffer empty    when `balance` falls to `empty_at`; minus infinite while it waits

The marks change only at events of that video. Between events both clocks run straight, so that the next event is the
nearest of: the nearest mark of each kind, the next arrival, the next change of the capacity. Marks are searched one by
one: a cell has ten videos rather than a thousand.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from numpy.random import Generator

from takeup.core.compiled import inlined, kernel
from takeup.streaming.simulate.lived import Lived

__all__ = ["Flows", "Levels", "Traffic", "empty_cell", "length_of", "note_blocked", "play_events"]

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

ARRIVES, CAPACITY_CHANGES, DOWNLOADED, HAS_ENOUGH, RUNS_EMPTY = range(5)


class Traffic(NamedTuple):
    """Who comes, and what each gets: `fill[n]` seconds of video per second when n share a cell at level 1."""

    gap_s: float
    class_upto: Floats
    mean_s: Floats
    fill: Floats
    start_s: float
    resume_s: float


class Levels(NamedTuple):
    """The capacity over time, relative to the mean.

    A log (`is_log`) goes through its levels in order, again and again, and stays `hold_s` at each. A Markov chain stays
    `hold_s` on average, then moves to the level whose part of row `upto` holds a random point.
    """

    level: Floats
    hold_s: Floats
    upto: Floats
    is_log: bool


class Flows(NamedTuple):
    """The videos that are downloading, packed at the front; see above for the marks.

    A video is known by its number of arrival, and carries what it has lived through until it leaves.
    """

    done_at: Floats
    enough_at: Floats
    empty_at: Floats
    waiting_since_s: Floats
    startup_s: Floats
    stall_s: Floats
    num_stalls: Ints
    video: Ints


def empty_cell(max_users: int) -> Flows:
    """Room for the videos of a cell."""
    seconds, counts = np.zeros((6, max_users)), np.zeros((2, max_users), np.int64)
    return Flows(*seconds, *counts)


@kernel
def play_events(
    traffic: Traffic, levels: Levels, flows: Flows, lived: Lived, chances: tuple[Generator, Generator, Generator]
) -> int:
    """Fill `lived` with the first videos that are accepted, and follow each to its end; returns the number of events.

    Arrivals go on until then, so that the last videos have company too. The generators are for arrivals, lengths and
    capacity: none disturbs the others.
    """
    arrivals, lengths, capacity = chances
    num_flows, num_seen, num_left, num_events = 0, 0, 0, 0
    now_s, received, balance = 0.0, 0.0, 0.0
    first = (0, 0, 0)
    place = 0
    arrival_in_s = arrivals.standard_exponential() * traffic.gap_s
    change_in_s = _hold_s(levels, place, capacity)
    while num_left < len(lived.startup_s):
        fill = traffic.fill[num_flows] * levels.level[place]
        step_s, event = arrival_in_s, ARRIVES
        if change_in_s < step_s:
            step_s, event = change_in_s, CAPACITY_CHANGES
        if num_flows > 0:
            step_s, event = _nearest_mark(flows, first, received, balance, fill, step_s, event)
        now_s += step_s
        received += fill * step_s
        balance += (fill - 1) * step_s
        arrival_in_s -= step_s
        change_in_s -= step_s
        num_events += 1
        if event == CAPACITY_CHANGES:
            place = _next_place(levels, place, capacity)
            change_in_s = _hold_s(levels, place, capacity)
            continue
        if event == ARRIVES:
            arrival_in_s = arrivals.standard_exponential() * traffic.gap_s
            length_s = length_of(traffic.class_upto, traffic.mean_s, lengths)
            if num_flows == len(flows.video):
                note_blocked(lived, num_seen)
                continue
            _admit(flows, num_flows, num_seen, received, length_s, traffic, now_s)
            num_flows += 1
            num_seen += 1
        elif event == HAS_ENOUGH:
            _begin_to_play(flows, first[1], balance, traffic, now_s)
        elif event == RUNS_EMPTY:
            _stall(flows, first[2], received, traffic, now_s)
        else:
            num_left += flows.video[first[0]] < len(lived.startup_s)
            num_flows -= 1
            _leave(flows, first[0], num_flows, now_s, lived)
            if num_flows == 0:
                now_s, received, balance = 0.0, 0.0, 0.0  # only differences count, and small numbers are exact
        first = _first_marks(flows, num_flows)
    return num_events


@inlined
def _nearest_mark(
    flows: Flows, first: tuple[int, int, int], received: float, balance: float, fill: float, step_s: float, event: int
) -> tuple[float, int]:
    """The next event, which is `event` in `step_s` unless a mark comes before; rounding never turns time back."""
    done_in_s = _time_to(flows.done_at[first[0]] - received, fill)
    enough_in_s = _time_to(flows.enough_at[first[1]] - received, fill)
    if done_in_s < step_s:
        step_s, event = done_in_s, DOWNLOADED
    if enough_in_s < step_s:
        step_s, event = enough_in_s, HAS_ENOUGH
    if fill < 1:
        empty_in_s = _time_to(balance - flows.empty_at[first[2]], 1 - fill)
        if empty_in_s < step_s:
            step_s, event = empty_in_s, RUNS_EMPTY
    return step_s, event


@inlined
def _time_to(distance: float, speed: float) -> float:
    """Also at speed zero: at once if it is there already, never if it is not."""
    return distance / speed if distance > 0 else 0.0


@inlined
def _first_marks(flows: Flows, num_flows: int) -> tuple[int, int, int]:
    """The videos that are the next to be downloaded, to have enough, and to run empty."""
    done, enough, empty = 0, 0, 0
    for flow in range(1, num_flows):
        if flows.done_at[flow] < flows.done_at[done]:
            done = flow
        if flows.enough_at[flow] < flows.enough_at[enough]:
            enough = flow
        if flows.empty_at[flow] > flows.empty_at[empty]:
            empty = flow
    return done, enough, empty


@inlined
def _admit(
    flows: Flows, flow: int, video: int, received: float, length_s: float, traffic: Traffic, now_s: float
) -> None:
    flows.done_at[flow] = received + length_s
    flows.enough_at[flow] = received + traffic.start_s
    flows.empty_at[flow] = -np.inf
    flows.waiting_since_s[flow] = now_s
    flows.stall_s[flow] = 0.0
    flows.num_stalls[flow] = 0
    flows.video[flow] = video


@inlined
def _begin_to_play(flows: Flows, flow: int, balance: float, traffic: Traffic, now_s: float) -> None:
    waited_s = now_s - flows.waiting_since_s[flow]
    if flows.num_stalls[flow]:
        flows.stall_s[flow] += waited_s
        flows.empty_at[flow] = balance - traffic.resume_s
    else:
        flows.startup_s[flow] = waited_s
        flows.empty_at[flow] = balance - traffic.start_s
    flows.enough_at[flow] = np.inf


@inlined
def _stall(flows: Flows, flow: int, received: float, traffic: Traffic, now_s: float) -> None:
    flows.num_stalls[flow] += 1
    flows.waiting_since_s[flow] = now_s
    flows.enough_at[flow] = received + traffic.resume_s
    flows.empty_at[flow] = -np.inf


@inlined
def _leave(flows: Flows, flow: int, last: int, now_s: float, lived: Lived) -> None:
    """Write down what the video lived through, and give its place to the last one."""
    video = flows.video[flow]
    if flows.enough_at[flow] < np.inf:
        waited_s = now_s - flows.waiting_since_s[flow]
        if flows.num_stalls[flow]:
            flows.stall_s[flow] += waited_s
        else:
            flows.startup_s[flow] = waited_s
    if video < len(lived.startup_s):
        lived.startup_s[video] = flows.startup_s[flow]
        lived.num_stalls[video] = flows.num_stalls[flow]
        lived.stall_s[video] = flows.stall_s[flow]
        lived.finished_early[video] = flows.enough_at[flow] < np.inf and flows.num_stalls[flow] == 0
    _move(flows, last, flow)


@inlined
def _move(flows: Flows, source: int, target: int) -> None:
    flows.done_at[target] = flows.done_at[source]
    flows.enough_at[target] = flows.enough_at[source]
    flows.empty_at[target] = flows.empty_at[source]
    flows.waiting_since_s[target] = flows.waiting_since_s[source]
    flows.startup_s[target] = flows.startup_s[source]
    flows.stall_s[target] = flows.stall_s[source]
    flows.num_stalls[target] = flows.num_stalls[source]
    flows.video[target] = flows.video[source]


@inlined
def note_blocked(lived: Lived, num_seen: int) -> None:
    """Somebody was turned away after `num_seen` videos."""
    if num_seen < len(lived.num_blocked):
        lived.num_blocked[num_seen] += 1


@inlined
def length_of(class_upto: Floats, mean_s: Floats, lengths: Generator) -> float:
    """How long the next video is."""
    view = _part_of(class_upto, lengths.random()) if len(class_upto) > 1 else 0
    return float(lengths.standard_exponential() * mean_s[view])


@inlined
def _hold_s(levels: Levels, place: int, capacity: Generator) -> float:
    stretch = 1.0 if levels.is_log else capacity.standard_exponential()
    return float(levels.hold_s[place] * stretch)


@inlined
def _next_place(levels: Levels, place: int, capacity: Generator) -> int:
    if levels.is_log:
        return place + 1 if place + 1 < len(levels.level) else 0
    return _part_of(levels.upto[place], capacity.random())


@inlined
def _part_of(upto: Floats, point: float) -> int:
    """Which part of the unit interval holds the point."""
    part = 0
    while part < len(upto) - 1 and upto[part] <= point:
        part += 1
    return part
