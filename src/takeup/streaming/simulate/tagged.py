"""Simulation of single videos, each alone on the chain that it sees: the quickest check of a solver."""

from typing import NamedTuple

import numpy as np
from numpy.random import Generator
from scipy.linalg import block_diag

from takeup.core.arrays import Floats, Ints
from takeup.core.compiled import inner, kernel
from takeup.core.seeds import Streams
from takeup.errors import BadInput
from takeup.streaming.chains import chain_of
from takeup.streaming.model import Cell, Chain, Player, QoeMetrics
from takeup.streaming.simulate.video_records import VideoRecords, check_run, empty_records, metrics_from_independent

DOWNLOADED = -1  # where a jump leads that ends the download

# How it works. Within a state everything is linear: content comes in at the fill rate, and leaves at the drain rate
# once playback has begun. So the next thing to happen is known exactly: the state changes, the buffer reaches its
# threshold or zero, or the last second of content arrives. The walk jumps from one to the next.


class ChainWalk(NamedTuple):
    """A chain as it is walked: the jumps out of state i stand at `first_jump[i]` up to `first_jump[i + 1]`.

    `upto` is the probability of this jump or one before it; a jump happens every `hold_s` on average.
    """

    first_jump: Ints
    target: Ints
    upto: Floats
    hold_s: Floats
    fill: Floats
    drain: Floats
    initial_upto: Floats


@kernel
def play_videos(
    walk: ChainWalk, player: tuple[float, float, float], length_s: float, chance: Generator, lived: VideoRecords
) -> None:
    """Fill `lived`, one video after the other."""
    for video in range(len(lived.startup_s)):
        _play(walk, player, length_s, chance, lived, video)


@inner
def _play(
    walk: ChainWalk,
    player: tuple[float, float, float],
    length_s: float,
    chance: Generator,
    lived: VideoRecords,
    video: int,
) -> None:
    """One video until its download ends."""
    start_s, resume_s, goal_s = player
    state = _first_state(walk, chance)
    jump_in_s = _hold_s(walk, state, chance)
    buffer_s, left_s, enough_s = 0.0, length_s, start_s
    playing, started = False, False
    while state >= 0:
        full = playing and buffer_s >= goal_s and walk.fill[state] > walk.drain[state]
        fill = walk.drain[state] if full else walk.fill[state]
        growth = fill - walk.drain[state] if playing else fill
        player_in_s = _player_in_s(playing, buffer_s, growth, goal_s if playing and growth > 0 else enough_s)
        end_in_s = left_s / fill
        step_s = min(jump_in_s, player_in_s, end_in_s)
        buffer_s = max(0.0, buffer_s + growth * step_s)
        left_s = max(0.0, left_s - fill * step_s)
        jump_in_s -= step_s
        if not started:
            lived.startup_s[video] += step_s
        elif not playing:
            lived.stall_s[video] += step_s
        if step_s == end_in_s:
            state = DOWNLOADED
        elif step_s < player_in_s:
            came = _next_state(walk, state, chance)
            slower = full and came == DOWNLOADED and chance.random() * walk.fill[state] > walk.drain[state]
            state = state if slower else came  # a paused download ends more seldom
            jump_in_s = _hold_s(walk, state, chance)
        elif playing and growth > 0:
            buffer_s = goal_s
        elif playing:
            playing, enough_s, buffer_s = False, resume_s, 0.0
            lived.num_stalls[video] += 1
        else:
            playing, started, buffer_s = True, True, enough_s
    lived.finished_early[video] = not started


@inner
def _player_in_s(playing: bool, buffer_s: float, growth: float, enough_s: float) -> float:
    """When the player starts, resumes, stalls or is full, if nothing else happens before."""
    if not playing or growth > 0:
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


def simulate_tagged(
    chain: Chain, player: Player, *, num_videos: int = 400_000, seed: int = 0, length_s: float | None = None
) -> QoeMetrics:
    """What viewers experience on `chain`, from independent videos.

    With `length_s` all are equally long: the end rates are ignored, and the content that has come is counted.
    """
    lived = play_tagged(chain, player, num_videos=num_videos, seed=seed, length_s=length_s)
    return metrics_from_independent("tagged videos", lived, chain.blocked_share)


def play_tagged(
    chain: Chain, player: Player, *, num_videos: int = 400_000, seed: int = 0, length_s: float | None = None
) -> VideoRecords:
    """The same, video by video: for distributions."""
    check_run(player, num_videos)
    _check_chain(chain, length_s)
    lived = empty_records(num_videos)
    chance = Streams(seed).stream("tagged videos")
    walk = _chain_walk(chain, ends_by_itself=length_s is None)
    rules = (min(player.start_s, player.goal_s), min(player.again_s, player.goal_s), player.goal_s)
    play_videos(walk, rules, np.inf if length_s is None else length_s, chance, lived)
    return lived


def _check_chain(chain: Chain, length_s: float | None) -> None:
    if chain.variance.any() or chain.give_up.any():
        raise BadInput("tagged videos play no variance and no viewers that give up; simulate 'slots' or 'cell' instead")
    if length_s is None and not _always_ends(chain):
        raise BadInput("a state of the chain leads to no end of the download; give it an end rate, or a fixed length")
    if length_s is not None and not 0 < length_s < np.inf:
        raise BadInput(f"length_s is {length_s}; give a finite number of seconds above zero")


def _always_ends(chain: Chain) -> bool:
    """Whether an end can be reached from every state."""
    ends = chain.end > 0
    for _ in range(chain.num_states):
        ends |= (chain.generator[:, ends] > 0).any(axis=1)
    return bool(ends.all())


def _chain_walk(chain: Chain, *, ends_by_itself: bool) -> ChainWalk:
    end = chain.end if ends_by_itself else np.zeros(chain.num_states)
    rates = np.column_stack((end, chain.generator))
    rates[np.arange(chain.num_states), np.arange(1, chain.num_states + 1)] = 0
    total = rates.sum(axis=1)
    state, target = np.nonzero(rates)
    return ChainWalk(
        first_jump=np.searchsorted(state, np.arange(chain.num_states + 1)),
        target=target - 1,  # the first column, the end, becomes DOWNLOADED
        upto=np.cumsum(rates, axis=1)[state, target] / total[state],
        hold_s=np.divide(1, total, out=np.full(chain.num_states, np.inf), where=total > 0),
        fill=np.array(chain.fill, np.float64),  # copies, so that every chain runs the same compiled code
        drain=np.array(chain.drain, np.float64),
        initial_upto=np.cumsum(chain.initial),
    )


def simulate_any_view(cell: Cell, player: Player, *, num_videos: int = 400_000, seed: int = 0) -> QoeMetrics:
    """What viewers experience in `cell`, from independent videos; fading is left to the mean, as without slots."""
    return simulate_tagged(chain_of_any_view(cell), player, num_videos=num_videos, seed=seed)


def chain_of_any_view(cell: Cell) -> Chain:
    """One chain with a separate part for every class of views; blocking makes no difference between them."""
    chains = [chain_of(cell, tagged, slot_s=0.0) for tagged in range(len(cell.views))]
    return Chain(
        generator=block_diag(*(chain.generator for chain in chains)),
        end=np.concatenate([chain.end for chain in chains]),
        fill=np.concatenate([chain.fill for chain in chains]),
        initial=np.concatenate([views.share * chain.initial for views, chain in zip(cell.views, chains, strict=True)]),
        drain=np.concatenate([chain.drain for chain in chains]),
        blocked_share=chains[0].blocked_share,
    )
