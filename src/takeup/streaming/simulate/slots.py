"""Simulation of the whole cell slot by slot, with fading and with videos whose bitrate varies."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.random import Generator

from takeup.core.arrays import Floats, Ints
from takeup.core.compiled import inlined, kernel
from takeup.core.seeds import Streams
from takeup.errors import BadInput
from takeup.streaming.model import Cell, Player, QoeMetrics
from takeup.streaming.simulate.cell import WARM_UP_SHARE, CellRun
from takeup.streaming.simulate.events import count_blocked, draw_length_s, draw_patience_s
from takeup.streaming.simulate.video_records import (
    VideoRecords,
    check_run,
    empty_records,
    mean_patience_s,
    metrics_from_batches,
)

# Numba kernel: all users of the cell live through every slot ----------------------------------------------------------


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


# The whole cell slot by slot, with fading and with videos whose bitrate varies: what equations reduce to a variance
#
# In every slot each user draws a Rayleigh channel; an opportunistic cell serves the one whose channel is best at the
# moment, any other cell shares the slot equally and has no fading. A video consists of groups of pictures, each of
# which plays equally long but is more or less data: content is measured in seconds at the mean bitrate, so that a large
# group drains the buffer faster. A stall interrupts a group, and playback goes on where it was.


@dataclass(frozen=True, slots=True)
class Slots:
    """The grain of the simulation: the slot, and the groups of pictures with their coefficient of variation."""

    slot_s: float = 0.002
    gop_s: float = 1.0
    gop_variation: float = 0.0

    def __post_init__(self) -> None:
        if not (0 < self.slot_s <= self.gop_s < np.inf and 0 <= self.gop_variation < np.inf):
            raise BadInput(
                f"slots of {self.slot_s} s, groups of {self.gop_s} s, a variation of {self.gop_variation} do not fit; "
                "give 0 < slot_s <= gop_s and a variation of zero or more, all finite"
            )


def simulate_slots(
    cell: Cell,
    player: Player,
    slots: Slots | None = None,
    *,
    num_videos: int = 20_000,
    seed: int = 0,
    give_up_per_s: float = 0.0,
) -> QoeMetrics:
    """What viewers experience in `cell`, slot by slot; errors from batch means.

    While they wait, all of them give up at the rate `give_up_per_s`.
    """
    played = play_slots(cell, player, slots, num_videos=num_videos, seed=seed, give_up_per_s=give_up_per_s)
    return metrics_from_batches("slots", played.records)


def play_slots(
    cell: Cell,
    player: Player,
    slots: Slots | None = None,
    *,
    num_videos: int = 20_000,
    seed: int = 0,
    give_up_per_s: float = 0.0,
) -> CellRun:
    """The same, video by video; an event is a slot with at least one user."""
    check_run(player, num_videos)
    player.check_unlimited()
    if cell.capacity is not None:
        raise BadInput("slots are for a constant capacity; simulate the whole cell to let the capacity change")
    num_warm_up = int(num_videos * WARM_UP_SHARE)
    lived = empty_records(num_warm_up + num_videos)
    streams = Streams(seed).child("slots")
    chances = tuple(streams.stream(name) for name in ("arrivals", "lengths", "fading", "pictures", "patience"))
    grain = _slot_parameters(cell, player, slots or Slots(), mean_patience_s(give_up_per_s))
    num_slots = play_every_slot(grain, empty_slot_users(cell.max_users), lived, chances)
    return CellRun(lived.after(num_warm_up), num_slots)


def _slot_parameters(cell: Cell, player: Player, slots: Slots, patience_s: float) -> SlotParameters:
    return SlotParameters(
        gap_s=1 / cell.arrivals_per_s,
        class_upto=np.cumsum([views.share for views in cell.views]),
        mean_s=np.array([views.mean_s for views in cell.views]),
        start_s=player.start_s,
        resume_s=player.again_s,
        opportunistic=cell.opportunistic,
        slot_s=slots.slot_s,
        slot_content_s=cell.speed * slots.slot_s,
        gop=round(slots.gop_s / slots.slot_s),
        gop_variation=slots.gop_variation,
        patience_s=patience_s,
    )
