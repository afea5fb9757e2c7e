"""Numba kernel: tagged videos, each walking through its chain from event to event.

How it works. Within a state everything is linear: content comes in at the fill rate, and leaves at the drain rate once
playback has begun. So the next thing to happen is known exactly: the state changes, the buffer reaches its threshold or
zero, the last second of content arrives, or the viewer gives up. The walk jumps from one to the next. Patience is one
exponential number per viewer, which waiting uses up.
"""

from typing import NamedTuple

import numpy as np
from numpy.random import Generator

from takeup.core.arrays import Floats, Ints
from takeup.core.compiled import inner, kernel
from takeup.streaming.simulate.video_records import VideoRecords

DOWNLOADED, GAVE_UP = -1, -2  # states of no return; the first is where a jump leads that ends the download


class ChainWalk(NamedTuple):
    """A chain as it is walked: the jumps out of state i stand at `first_jump[i]` up to `first_jump[i + 1]`.

    `upto` is the probability of this jump or one before it; a jump happens every `hold_s` on average. Viewers are
    `impatient` if they give up in any state.
    """

    first_jump: Ints
    target: Ints
    upto: Floats
    hold_s: Floats
    fill: Floats
    drain: Floats
    give_up: Floats
    impatient: bool
    initial_upto: Floats


@kernel
def play_videos(
    walk: ChainWalk, start_s: float, resume_s: float, length_s: float, chance: Generator, lived: VideoRecords
) -> None:
    """Fill `lived`, one video after the other."""
    for video in range(len(lived.startup_s)):
        _play(walk, start_s, resume_s, length_s, chance, lived, video)


@inner
def _play(
    walk: ChainWalk,
    start_s: float,
    resume_s: float,
    length_s: float,
    chance: Generator,
    lived: VideoRecords,
    video: int,
) -> None:
    """One video until its download ends or its viewer gives up."""
    state = _first_state(walk, chance)
    jump_in_s = _hold_s(walk, state, chance)
    patience = chance.standard_exponential() if walk.impatient else np.inf
    buffer_s, left_s, enough_s = 0.0, length_s, start_s
    playing, started = False, False
    while state >= 0:
        fill = walk.fill[state]
        growth = fill - walk.drain[state] if playing else fill
        impatience = 0.0 if playing else walk.give_up[state]
        player_in_s = _player_in_s(playing, buffer_s, growth, enough_s)
        end_in_s, leave_in_s = left_s / fill, patience / impatience
        step_s = min(jump_in_s, player_in_s, end_in_s, leave_in_s)
        buffer_s = max(0.0, buffer_s + growth * step_s)
        left_s = max(0.0, left_s - fill * step_s)
        patience -= impatience * step_s
        jump_in_s -= step_s
        if not started:
            lived.startup_s[video] += step_s
        elif not playing:
            lived.stall_s[video] += step_s
        if step_s == end_in_s:
            state = DOWNLOADED
        elif step_s == leave_in_s:
            state = GAVE_UP
        elif step_s < player_in_s:
            state = _next_state(walk, state, chance)
            jump_in_s = _hold_s(walk, state, chance)
        elif playing:
            playing, enough_s, buffer_s = False, resume_s, 0.0
            lived.num_stalls[video] += 1
        else:
            playing, started, buffer_s = True, True, enough_s
    lived.gave_up[video] = state == GAVE_UP
    lived.finished_early[video] = state == DOWNLOADED and not started


@inner
def _player_in_s(playing: bool, buffer_s: float, growth: float, enough_s: float) -> float:
    """When the player starts, resumes or stalls, if nothing else happens before."""
    if not playing:
        return max(0.0, enough_s - buffer_s) / growth
    return buffer_s / -growth if growth < 0 else np.inf


@inner
def _hold_s(walk: ChainWalk, state: int, chance: Generator) -> float:
    return 0.0 if state < 0 else chance.standard_exponential() * walk.hold_s[state]


@inner
def _first_state(walk: ChainWalk, chance: Generator) -> int:
    state = int(np.searchsorted(walk.initial_upto, chance.random(), side="right"))
    return min(state, len(walk.initial_upto) - 1)


@inner
def _next_state(walk: ChainWalk, state: int, chance: Generator) -> int:
    """The jump whose part of the unit interval holds a random point."""
    point = chance.random()
    jump, last = walk.first_jump[state], walk.first_jump[state + 1] - 1
    while jump < last and walk.upto[jump] <= point:
        jump += 1
    return int(walk.target[jump])
