"""Simulation of the whole cell slot by slot, with fading and videos whose bitrate varies: what is a variance elsewhere.

In every slot each user draws a Rayleigh channel; an opportunistic cell serves the one whose channel is best, any other
cell shares the slot equally and has no fading. A video consists of groups of pictures that play equally long but are
more or less data: a large group drains the buffer faster. A stall interrupts a group, and playback goes on in it.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.random import Generator

from takeup.core.arrays import Floats
from takeup.core.compiled import inlined, kernel
from takeup.core.seeds import Streams
from takeup.errors import BadInput
from takeup.streaming.chains import PICTURES_S
from takeup.streaming.model import Cell, Player, QoeMetrics
from takeup.streaming.simulate.cell import WARM_UP_SHARE, CellRun
from takeup.streaming.simulate.events import count_blocked, draw_length_s
from takeup.streaming.simulate.video_records import (
    VideoRecords,
    check_run,
    empty_records,
    metrics_from_batches,
)


class SlotParameters(NamedTuple):
    """What stays the same during a run; `gop` is a number of slots, and `slot_content_s` what a slot delivers."""

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


# A video that is downloading is a row of a table; it has an infinite ENOUGH while it plays. DRAIN is the content that a
# slot of the current group of pictures takes, GOP_LEFT its slots still to play, VIDEO its number of arrival.
LEFT, BUFFER, ENOUGH, DRAIN, WAITS_SINCE, STARTUP, STALLED, GOP_LEFT, NUM_STALLS, VIDEO = range(10)


@kernel
def play_every_slot(grain: SlotParameters, users: Floats, lived: VideoRecords, chances: tuple[Generator, ...]) -> int:
    """Fill `lived` with the first videos that are accepted, and follow each to its end; returns the slots in use."""
    arrivals, lengths, fading, pictures = chances
    num_users, num_seen, num_left, num_slots, slot = 0, 0, 0, 0, 0
    arrival_s = arrivals.standard_exponential() * grain.gap_s
    while num_left < len(lived.startup_s):
        if num_users == 0:
            slot = max(slot, int(np.ceil(arrival_s / grain.slot_s)))
        while arrival_s <= slot * grain.slot_s:
            length_s = draw_length_s(grain.class_upto, grain.mean_s, lengths)
            if num_users < len(users):
                users[num_users] = 0.0
                users[num_users, LEFT], users[num_users, ENOUGH] = length_s, grain.start_s
                users[num_users, WAITS_SINCE], users[num_users, VIDEO] = arrival_s, num_seen
                num_users += 1
                num_seen += 1
            else:
                count_blocked(lived, num_seen)
            arrival_s += arrivals.standard_exponential() * grain.gap_s
        _serve(users, num_users, grain, fading)
        slot += 1
        num_slots += 1
        now_s = slot * grain.slot_s
        for place in range(num_users - 1, -1, -1):  # backwards: the last video moves to the row of one that leaves
            user = users[place]
            waits = user[ENOUGH] < np.inf
            if user[LEFT] <= 0:
                num_left += user[VIDEO] < len(lived.startup_s)
                num_users -= 1
                _leave(user, now_s, lived)
                users[place] = users[num_users]
            elif not waits:
                _watch(user, now_s, grain, pictures)
            elif user[BUFFER] >= user[ENOUGH]:
                _end_wait(user, now_s)
                user[ENOUGH] = np.inf
    return num_slots


@inlined
def _serve(users: Floats, num_users: int, grain: SlotParameters, fading: Generator) -> None:
    """Deliver one slot: to the user with the best channel, or to all users."""
    if not grain.opportunistic:
        for user in range(num_users):
            users[user, LEFT] -= grain.slot_content_s / num_users
            users[user, BUFFER] += grain.slot_content_s / num_users
        return
    best, best_channel = 0, 0.0
    for user in range(num_users):
        channel = fading.standard_exponential()
        if channel > best_channel:
            best, best_channel = user, channel
    users[best, LEFT] -= grain.slot_content_s * best_channel
    users[best, BUFFER] += grain.slot_content_s * best_channel


@inlined
def _end_wait(user: Floats, now_s: float) -> None:
    waited_s = now_s - user[WAITS_SINCE]
    if user[NUM_STALLS] > 0:
        user[STALLED] += waited_s
    else:
        user[STARTUP] = waited_s


@inlined
def _watch(user: Floats, now_s: float, grain: SlotParameters, pictures: Generator) -> None:
    """Play one slot, and stall if that empties the buffer."""
    if user[GOP_LEFT] == 0:
        user[GOP_LEFT] = grain.gop
        user[DRAIN] = grain.slot_s * _gop_size(grain.gop_variation, pictures)
    user[GOP_LEFT] -= 1
    user[BUFFER] -= user[DRAIN]
    if user[BUFFER] <= 0:
        user[BUFFER] = 0.0
        user[ENOUGH] = grain.resume_s
        user[WAITS_SINCE] = now_s
        user[NUM_STALLS] += 1


@inlined
def _gop_size(variation: float, pictures: Generator) -> float:
    """The size of a group over the mean: gamma, which is never negative."""
    return 1.0 if variation == 0 else pictures.gamma(1 / variation**2, variation**2)


@inlined
def _leave(user: Floats, now_s: float, lived: VideoRecords) -> None:
    """Record the statistics of a video that leaves."""
    video, waits = int(user[VIDEO]), user[ENOUGH] < np.inf
    if waits:
        _end_wait(user, now_s)
    if video < len(lived.startup_s):
        lived.startup_s[video] = user[STARTUP]
        lived.num_stalls[video] = int(user[NUM_STALLS])
        lived.stall_s[video] = user[STALLED]
        lived.finished_early[video] = waits and user[NUM_STALLS] == 0


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
) -> QoeMetrics:
    """What viewers experience in `cell`, slot by slot; errors from batch means."""
    return metrics_from_batches("slots", play_slots(cell, player, slots, num_videos=num_videos, seed=seed).records)


def play_slots(
    cell: Cell,
    player: Player,
    slots: Slots | None = None,
    *,
    num_videos: int = 20_000,
    seed: int = 0,
) -> CellRun:
    """The same, video by video; an event is a slot with at least one user."""
    check_run(player, num_videos)
    player.check_unlimited()
    if cell.capacity is not None:
        raise BadInput("slots are for a constant capacity; simulate the whole cell to let the capacity change")
    num_warm_up = int(num_videos * WARM_UP_SHARE)
    lived = empty_records(num_warm_up + num_videos)
    streams = Streams(seed).child("slots")
    chances = tuple(streams.stream(name) for name in ("arrivals", "lengths", "fading", "pictures"))
    grain = _slot_parameters(cell, player, slots or Slots(gop_s=PICTURES_S, gop_variation=cell.variation))
    num_slots = play_every_slot(grain, np.zeros((cell.max_users, 10)), lived, chances)
    return CellRun(lived.after(num_warm_up), num_slots)


def _slot_parameters(cell: Cell, player: Player, slots: Slots) -> SlotParameters:
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
    )
