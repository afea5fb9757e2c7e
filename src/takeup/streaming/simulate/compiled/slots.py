"""Numba kernel: slotted simulation of a whole cell, in which every video has its own player."""

from typing import NamedTuple

import numpy as np
from numpy.random import Generator

from takeup.core.arrays import Floats, Ints
from takeup.core.compiled import inlined, kernel
from takeup.streaming.simulate.compiled.events import count_blocked, draw_length_s, draw_patience_s
from takeup.streaming.simulate.video_records import VideoRecords


class SlotParameters(NamedTuple):
    """What stays the same during a run; `gop` is a number of slots, and `slot_content_s` what a slot delivers.

    Viewers wait for `patience_s` altogether, on average; it is infinite if they never give up.
    """

    gap_s: float
    class_upto: Floats
    mean_s: Floats
    start_s: float
    resume_s: float
    opportunistic: bool
    slot_s: float
    slot_content_s: float
    gop: int
    gop_variation: float
    patience_s: float


class SlotUsers(NamedTuple):
    """The videos that are downloading, packed at the front.

    `drain_s` is the content that a slot of the current group of pictures takes, `gop_left` its slots still to play, and
    `enough_s` the buffer that ends the wait; a video that plays has infinite `enough_s`.
    """

    left_s: Floats
    buffer_s: Floats
    enough_s: Floats
    drain_s: Floats
    waiting_since_s: Floats
    patience_s: Floats
    startup_s: Floats
    stall_s: Floats
    gop_left: Ints
    num_stalls: Ints
    video: Ints


def empty_slot_users(max_users: int) -> SlotUsers:
    """Allocate the state for `max_users` videos of a cell."""
    return SlotUsers(*np.zeros((8, max_users)), *np.zeros((3, max_users), np.int64))


@kernel
def play_every_slot(
    grain: SlotParameters, users: SlotUsers, lived: VideoRecords, chances: tuple[Generator, ...]
) -> int:
    """Fill `lived` with the first videos that are accepted, and follow each to its end; returns the slots in use."""
    arrivals, lengths, fading, pictures, patience = chances
    num_users, num_seen, num_left, num_slots, slot = 0, 0, 0, 0, 0
    arrival_s = arrivals.standard_exponential() * grain.gap_s
    while num_left < len(lived.startup_s):
        if num_users == 0:
            slot = max(slot, int(np.ceil(arrival_s / grain.slot_s)))
        while arrival_s <= slot * grain.slot_s:
            length_s = draw_length_s(grain.class_upto, grain.mean_s, lengths)
            if num_users < len(users.video):
                users.patience_s[num_users] = draw_patience_s(grain.patience_s, patience)
                _admit(users, num_users, num_seen, length_s, arrival_s, grain)
                num_users += 1
                num_seen += 1
            else:
                count_blocked(lived, num_seen)
            arrival_s += arrivals.standard_exponential() * grain.gap_s
        _serve(users, num_users, grain, fading)
        slot += 1
        num_slots += 1
        now_s = slot * grain.slot_s
        for user in range(num_users - 1, -1, -1):  # backwards: the last video moves to the slot of one that leaves
            gives_up = users.enough_s[user] < np.inf and now_s - users.waiting_since_s[user] >= users.patience_s[user]
            if users.left_s[user] <= 0 or gives_up:
                num_left += users.video[user] < len(lived.startup_s)
                num_users -= 1
                _leave(users, user, num_users, gives_up, now_s, lived)
            elif users.enough_s[user] < np.inf:
                _wait(users, user, now_s)
            else:
                _watch(users, user, now_s, grain, pictures)
    return num_slots


@inlined
def _admit(users: SlotUsers, user: int, video: int, length_s: float, now_s: float, grain: SlotParameters) -> None:
    users.left_s[user] = length_s
    users.buffer_s[user] = 0.0
    users.enough_s[user] = grain.start_s
    users.waiting_since_s[user] = now_s
    users.stall_s[user] = 0.0
    users.gop_left[user] = 0
    users.num_stalls[user] = 0
    users.video[user] = video


@inlined
def _serve(users: SlotUsers, num_users: int, grain: SlotParameters, fading: Generator) -> None:
    """Deliver one slot: to the user with the best channel, or to all users."""
    if not grain.opportunistic:
        for user in range(num_users):
            _receive(users, user, grain.slot_content_s / num_users)
        return
    best, best_channel = 0, 0.0
    for user in range(num_users):
        channel = fading.standard_exponential()
        if channel > best_channel:
            best, best_channel = user, channel
    _receive(users, best, grain.slot_content_s * best_channel)


@inlined
def _receive(users: SlotUsers, user: int, content_s: float) -> None:
    users.left_s[user] -= content_s
    users.buffer_s[user] += content_s


@inlined
def _wait(users: SlotUsers, user: int, now_s: float) -> None:
    """Start or resume playback once the buffer reaches the threshold."""
    if users.buffer_s[user] < users.enough_s[user]:
        return
    _end_wait(users, user, now_s)
    users.enough_s[user] = np.inf


@inlined
def _end_wait(users: SlotUsers, user: int, now_s: float) -> None:
    waited_s = now_s - users.waiting_since_s[user]
    users.patience_s[user] -= waited_s
    if users.num_stalls[user]:
        users.stall_s[user] += waited_s
    else:
        users.startup_s[user] = waited_s


@inlined
def _watch(users: SlotUsers, user: int, now_s: float, grain: SlotParameters, pictures: Generator) -> None:
    """Play one slot, and stall if that empties the buffer."""
    if users.gop_left[user] == 0:
        users.gop_left[user] = grain.gop
        users.drain_s[user] = grain.slot_s * _gop_size(grain.gop_variation, pictures)
    users.gop_left[user] -= 1
    users.buffer_s[user] -= users.drain_s[user]
    if users.buffer_s[user] <= 0:
        users.buffer_s[user] = 0.0
        users.enough_s[user] = grain.resume_s
        users.waiting_since_s[user] = now_s
        users.num_stalls[user] += 1


@inlined
def _gop_size(variation: float, pictures: Generator) -> float:
    """The size of a group over the mean: gamma, which is never negative."""
    return 1.0 if variation == 0 else pictures.gamma(1 / variation**2, variation**2)


@inlined
def _leave(users: SlotUsers, user: int, last: int, gave_up: bool, now_s: float, lived: VideoRecords) -> None:
    """Record the statistics of a video that leaves, and move the last one to its index."""
    video, waits = users.video[user], users.enough_s[user] < np.inf
    if waits:
        _end_wait(users, user, now_s)
    if video < len(lived.startup_s):
        lived.startup_s[video] = users.startup_s[user]
        lived.num_stalls[video] = users.num_stalls[user]
        lived.stall_s[video] = users.stall_s[user]
        lived.finished_early[video] = waits and users.num_stalls[user] == 0 and not gave_up
        lived.gave_up[video] = gave_up
    _move(users, last, user)


@inlined
def _move(users: SlotUsers, source: int, target: int) -> None:
    users.left_s[target] = users.left_s[source]
    users.buffer_s[target] = users.buffer_s[source]
    users.enough_s[target] = users.enough_s[source]
    users.drain_s[target] = users.drain_s[source]
    users.waiting_since_s[target] = users.waiting_since_s[source]
    users.patience_s[target] = users.patience_s[source]
    users.startup_s[target] = users.startup_s[source]
    users.stall_s[target] = users.stall_s[source]
    users.gop_left[target] = users.gop_left[source]
    users.num_stalls[target] = users.num_stalls[source]
    users.video[target] = users.video[source]
