"""The simulators once more, plainly: objects and lists instead of clocks and marks, with the same draws.

Each plain version first finds out what a video receives, piece by piece, and lets a player watch it afterwards.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.random import Generator

from takeup.streaming.model import Cell, Chain, Player


class Piece(NamedTuple):
    """A time during which a download has the same speed."""

    duration_s: float
    fill: float
    drain: float = 1.0
    give_up: float = 0.0


@dataclass
class Watched:
    """What one viewer lived through."""

    startup_s: float = 0.0
    num_stalls: int = 0
    stall_s: float = 0.0
    finished_early: bool = False
    gave_up: bool = False
    num_blocked: int = 0


def watch(pieces: Iterable[Piece], player: Player, patience: float = math.inf) -> Watched:
    """Play while the pieces arrive; what happens after the last one is of no interest.

    Waiting uses up patience, at the rate `give_up` of the piece.
    """
    seen, buffer_s, enough_s = Watched(), 0.0, player.start_s
    playing, started = False, False
    for duration_s, fill, drain, give_up in pieces:
        left_s = duration_s
        while left_s > 0:
            growth = fill - drain if playing else fill
            distance_s = buffer_s if playing else enough_s - buffer_s
            speed = -growth if playing else growth
            step_s = min(left_s, distance_s / speed if speed > 0 else math.inf if distance_s > 0 else left_s)
            leave_s = patience / give_up if give_up > 0 and not playing else math.inf
            seen.gave_up = leave_s < step_s
            step_s = min(step_s, leave_s)
            turns = step_s < left_s
            left_s -= step_s
            patience -= 0.0 if playing else give_up * step_s
            buffer_s += growth * step_s
            seen.startup_s += 0.0 if started else step_s
            seen.stall_s += step_s if started and not playing else 0.0
            if seen.gave_up:
                return seen
            if turns and playing:
                seen.num_stalls += 1
                playing, enough_s, buffer_s = False, player.again_s, 0.0
            elif turns:
                playing, started, buffer_s = True, True, enough_s
    seen.finished_early = not started
    return seen


def part_of(shares: list[float], point: float) -> int:
    """Which share the point falls into when they are laid end to end."""
    total = 0.0
    for part, share in enumerate(shares[:-1]):
        total += share
        if point < total:
            return part
    return len(shares) - 1


# A tagged video -------------------------------------------------------------------------------------------------------


def plain_tagged(
    chain: Chain, player: Player, chance: Generator, num_videos: int, length_s: float = math.inf
) -> list[Watched]:
    return [watch_chain(chain, player, chance, length_s) for _ in range(num_videos)]


def watch_chain(chain: Chain, player: Player, chance: Generator, length_s: float) -> Watched:
    """The draws of a video come in this order: first state, first stay, patience, then jump and stay in turn."""
    state = part_of(list(chain.initial), chance.random())
    stay = chance.standard_exponential()
    patience = chance.standard_exponential() if chain.give_up.any() else math.inf
    return watch(pieces_of_chain(chain, chance, length_s, state, stay), player, patience)


def pieces_of_chain(chain: Chain, chance: Generator, length_s: float, state: int, stay: float) -> Iterator[Piece]:
    """Walk through the chain until the download ends, by itself or after `length_s` of content."""
    while True:
        ways_out = [chain.end[state] if math.isinf(length_s) else 0.0, *chain.generator[state]]
        ways_out[state + 1] = 0.0
        mean_s = 1 / sum(ways_out) if sum(ways_out) > 0 else math.inf
        stay_s = stay * mean_s
        here = chain.fill[state], chain.drain[state], chain.give_up[state]
        if length_s < chain.fill[state] * stay_s:
            yield Piece(length_s / chain.fill[state], *here)
            return
        yield Piece(stay_s, *here)
        length_s -= chain.fill[state] * stay_s
        possible = [way for way, rate in enumerate(ways_out) if rate > 0]
        way = possible[part_of([ways_out[way] * mean_s for way in possible], chance.random())]
        if way == 0:
            return
        state, stay = way - 1, chance.standard_exponential()


# A whole cell ---------------------------------------------------------------------------------------------------------


@dataclass
class Download:
    """A video of a cell and what it has received."""

    left_s: float
    num_blocked: int
    pieces: list[Piece] = field(default_factory=list)


class Levels:
    """The capacity over time: a Markov chain, or a log that starts again at its end."""

    def __init__(self, cell: Cell, chance: Generator, log: list[tuple[float, float]] | None) -> None:
        self.capacity, self.chance, self.log = cell.capacity, chance, log
        self.place = -1 if log else 0
        self.level, self.left_s = 1.0, math.inf
        if log or self.capacity:
            self.change(first=True)

    def change(self, first: bool = False) -> None:
        if self.log:
            self.place = (self.place + 1) % len(self.log)
            self.left_s, self.level = self.log[self.place]
            return
        assert self.capacity is not None
        if not first:
            rates = [float(rate) * (other != self.place) for other, rate in enumerate(self._rates())]
            self.place = part_of([rate / sum(rates) for rate in rates], self.chance.random())
        self.level = float(self.capacity.levels[self.place])
        self.left_s = self.chance.standard_exponential() / -float(self._rates()[self.place])

    def _rates(self) -> list[float]:
        assert self.capacity is not None
        return [float(rate) for rate in self.capacity.generator[self.place]]


def plain_cell(
    cell: Cell,
    player: Player,
    chances: tuple[Generator, Generator, Generator],
    num_videos: int,
    log: list[tuple[float, float]] | None = None,
) -> list[Watched]:
    """The first `num_videos` that are accepted, in order of arrival."""
    arrivals, lengths, capacity = chances
    levels = Levels(cell, capacity, log)
    accepted: list[Download] = []
    active: list[Download] = []
    num_blocked = 0
    arrival_s = arrivals.standard_exponential() / cell.arrivals_per_s
    while len(accepted) < num_videos or any(download.left_s > 0 for download in accepted[:num_videos]):
        gain = sum(1 / k for k in range(1, len(active) + 1)) if cell.opportunistic else 1.0
        fill = cell.speed * gain * levels.level / max(1, len(active))
        shortest_s = min((download.left_s for download in active), default=math.inf)
        step_s = min(arrival_s, levels.left_s, shortest_s / fill if fill > 0 else math.inf)
        for download in active:
            download.pieces.append(Piece(step_s, fill))
            download.left_s -= fill * step_s
        arrival_s -= step_s
        levels.left_s -= step_s
        if levels.left_s == 0:
            levels.change()
        elif arrival_s == 0:
            arrival_s = arrivals.standard_exponential() / cell.arrivals_per_s
            length_s = draw_length_s(cell, lengths)
            if len(active) < cell.max_users:
                accepted.append(Download(length_s, num_blocked))
                active.append(accepted[-1])
                num_blocked = 0
            else:
                num_blocked += 1
        else:
            done = min(active, key=lambda download: download.left_s)
            done.left_s = 0.0
            active.remove(done)
    return [watched_download(download, player) for download in accepted[:num_videos]]


def draw_length_s(cell: Cell, lengths: Generator) -> float:
    point = lengths.random() if len(cell.views) > 1 else 0.0
    return lengths.standard_exponential() * cell.views[part_of([views.share for views in cell.views], point)].mean_s


def watched_download(download: Download, player: Player) -> Watched:
    watched = watch(download.pieces, player)
    watched.num_blocked = download.num_blocked
    return watched


# Slots ----------------------------------------------------------------------------------------------------------------


@dataclass
class Viewer:
    """A video in a cell of slots."""

    left_s: float
    since_s: float
    enough_s: float
    watched: Watched
    buffer_s: float = 0.0
    playing: bool = False
    picture_slots: int = 0
    size: float = 1.0

    def stop_waiting(self, now_s: float) -> None:
        if self.watched.num_stalls:
            self.watched.stall_s += now_s - self.since_s
        else:
            self.watched.startup_s = now_s - self.since_s


class SlotGrain(NamedTuple):
    """The settings that only slots have."""

    slot_s: float
    gop_slots: int
    gop_variation: float


def plain_slots(
    cell: Cell, player: Player, grain: SlotGrain, chances: tuple[Generator, ...], num_videos: int
) -> list[Watched]:
    """The first `num_videos` that are accepted, in order of arrival."""
    arrivals, lengths, fading, pictures = chances
    accepted: list[Viewer] = []
    active: list[Viewer] = []
    finished: set[int] = set()
    num_blocked, slot = 0, 0
    arrival_s = arrivals.standard_exponential() / cell.arrivals_per_s
    while len(accepted) < num_videos or not finished.issuperset(id(viewer) for viewer in accepted[:num_videos]):
        while arrival_s <= slot * grain.slot_s:
            length_s = draw_length_s(cell, lengths)
            if len(active) < cell.max_users:
                watched = Watched(num_blocked=num_blocked)
                accepted.append(Viewer(length_s, arrival_s, player.start_s, watched))
                active.append(accepted[-1])
                num_blocked = 0
            else:
                num_blocked += 1
            arrival_s += arrivals.standard_exponential() / cell.arrivals_per_s
        serve(cell, active, grain.slot_s, fading)
        slot += 1
        for viewer in reversed(active.copy()):
            if viewer.left_s <= 0:
                leave(viewer, slot * grain.slot_s)
                finished.add(id(viewer))
                active[active.index(viewer)] = active[-1]
                active.pop()
            else:
                live_one_slot(viewer, player, grain, slot * grain.slot_s, pictures)
    return [viewer.watched for viewer in accepted[:num_videos]]


def serve(cell: Cell, active: list[Viewer], slot_s: float, fading: Generator) -> None:
    amounts = np.full(len(active), cell.speed * slot_s / max(1, len(active)))
    if cell.opportunistic and active:
        channels = np.array([fading.standard_exponential() for _ in active])
        amounts = np.where(np.arange(len(active)) == channels.argmax(), cell.speed * slot_s * channels, 0)
    for viewer, amount in zip(active, amounts, strict=True):
        viewer.left_s -= float(amount)
        viewer.buffer_s += float(amount)


def leave(viewer: Viewer, now_s: float) -> None:
    if not viewer.playing:
        viewer.watched.finished_early = viewer.watched.num_stalls == 0
        viewer.stop_waiting(now_s)


def live_one_slot(viewer: Viewer, player: Player, grain: SlotGrain, now_s: float, pictures: Generator) -> None:
    if not viewer.playing:
        if viewer.buffer_s >= viewer.enough_s:
            viewer.stop_waiting(now_s)
            viewer.playing = True
        return
    if viewer.picture_slots == 0:
        shape = 1 / grain.gop_variation**2 if grain.gop_variation else 0.0
        viewer.size = pictures.gamma(shape, grain.gop_variation**2) if shape else 1.0
        viewer.picture_slots = grain.gop_slots
    viewer.picture_slots -= 1
    viewer.buffer_s -= grain.slot_s * viewer.size
    if viewer.buffer_s <= 0:
        viewer.buffer_s, viewer.playing = 0.0, False
        viewer.enough_s, viewer.since_s = player.again_s, now_s
        viewer.watched.num_stalls += 1
