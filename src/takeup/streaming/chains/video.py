"""What videos and viewers add to a chain: adaptive bit rate, phase-type lengths, variable bit rate, abandonment."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np

from takeup.core.arrays import Floats
from takeup.errors import BadInput
from takeup.streaming.chains.cell import SLOT_S, chain_of, efficiency_of, flows_of, tagged_video
from takeup.streaming.chains.shared import shared_chain
from takeup.streaming.model import Cell, Chain

# Adaptive bit rate that follows the fair share: with more users in the cell all take a lower level --------------------
#
# How it works. A level of v bit/s turns the capacity C into C / v seconds of video per second, so with n users one of
# them fills at C / (n v(n)): adaptation only makes the efficiency of the cell depend on n. Lengths stay in seconds of
# video, so a lower level also means that downloads end sooner.

HIGHEST_LEVEL_S = 1e7  # 116 days; beyond it exponentials lose their digits
BitrateRule = Callable[[float, Sequence[float]], float]  # (fair share in bit/s, ladder) to the bit rate taken


def fair_share_rule(share_bps: float, ladder_bps: Sequence[float]) -> float:
    """The highest level that the fair share can carry, else the lowest."""
    return max((level for level in ladder_bps if level <= share_bps), default=min(ladder_bps))


def abr_by_state(
    cell: Cell, ladder_bps: Sequence[float], rule: BitrateRule = fair_share_rule, tagged: int = 0
) -> Chain:
    """What a video sees when every player takes the level that `rule` picks for its fair share of the mean capacity."""
    bitrates = bitrates_by_users(cell, ladder_bps, rule)
    efficiency = efficiency_of(cell) * cell.bitrate_bps / bitrates
    return shared_chain(flows_of(cell), tagged_video(cell, tagged, SLOT_S), efficiency, cell.capacity)


def bitrates_by_users(cell: Cell, ladder_bps: Sequence[float], rule: BitrateRule = fair_share_rule) -> Floats:
    """The bit rate that every user takes with 1, 2, .. max_users users in the cell."""
    ladder = check_ladder(ladder_bps)
    users = np.arange(1, cell.max_users + 1)
    shares = cell.capacity_bps * efficiency_of(cell) / users
    return np.array([rule(float(share), ladder) for share in shares])


def mean_bitrate(chain: Chain, bitrates: Floats) -> float:
    """Mean over the content of a video, where `bitrates[i]` is taken in state i of its chain."""
    content = _seconds_in(chain) * chain.fill
    return float(content @ bitrates / content.sum())


def num_switches(chain: Chain, bitrates: Floats) -> float:
    """Expected number of changes of the bit rate during the download of one video."""
    changes = bitrates[:, None] != bitrates[None, :]
    return float(_seconds_in(chain) @ (chain.generator * changes).sum(axis=1))


def check_ladder(ladder_bps: Sequence[float]) -> list[float]:
    """The ladder, if it rises from above zero."""
    ladder = [float(level) for level in ladder_bps]
    rises = all(low < high for low, high in pairwise(ladder))
    if not ladder or not rises or ladder[0] <= 0 or not all(map(math.isfinite, ladder)):
        raise BadInput(f"the ladder {ladder} must hold bit rates above zero in rising order; sort it and drop repeats")
    return ladder


def check_levels(ladder_bps: Sequence[float], levels_s: Sequence[float]) -> list[float]:
    """The buffers at which the bit rate changes, if they rise from above zero and lie between those of the ladder."""
    num_levels = len(check_ladder(ladder_bps)) - 1
    levels = [float(level_s) for level_s in levels_s]
    if len(levels) != num_levels:
        raise BadInput(f"{num_levels + 1} bit rates need {num_levels} levels_s between them")
    if not all(low < high for low, high in pairwise([0.0, *levels])):
        raise BadInput(f"levels_s {levels} must be seconds above zero in rising order")
    if levels and levels[-1] > HIGHEST_LEVEL_S:
        raise BadInput(f"the highest of levels_s is {levels[-1]}; give seconds of video from 0 to {HIGHEST_LEVEL_S:g}")
    return levels


def _seconds_in(chain: Chain) -> Floats:
    return np.asarray(np.linalg.solve(-chain.killed.T, chain.initial), dtype=np.float64)


# What a video and its viewer add to a chain: lengths of any phase type, variable bit rate, impatience -----------------
#
# How it works. A length of phase type is the time a small Markov chain takes to end, here run in seconds of *content*:
# in a state with fill rate b its rates S are passed b times as fast, and downloads end at b times its exit rates. The
# product with any chain is kron(Q, I) + kron(diag(b), S with the exits put back on the diagonal).
#
# Variable bit rate: groups of pictures of g seconds whose size has a coefficient of variation cv make the content that
# is played scatter by cv^2 g per second around its mean.
#
# Impatience is a rate of leaving while nothing plays. It enters the waits only: viewers stay during playback. It is
# that of the tagged video; the others, whose buffers are not in the state, stay until they are downloaded.


def phase_type(cell: Cell, initial: Floats, rates: Floats, tagged: int = 0) -> Chain:
    """What a video of `cell` sees whose length has this phase type; the others keep their own lengths."""
    return with_phases(chain_of(cell, tagged), initial, rates)


def with_phases(chain: Chain, initial: Floats, rates: Floats) -> Chain:
    """Replace the length of the video: phases start by `initial` and move by the sub-generator `rates` per second."""
    exits = _exits(initial, rates)
    unit = np.eye(len(initial))
    return Chain(
        generator=np.kron(chain.generator, unit) + np.kron(np.diag(chain.fill), rates + np.diag(exits)),
        end=_kron(chain.fill, exits),
        fill=np.repeat(chain.fill, len(initial)),
        initial=_kron(chain.initial, initial),
        drain=np.repeat(chain.drain, len(initial)),
        variance=np.repeat(chain.variance, len(initial)),
        blocked_share=chain.blocked_share,
        give_up=np.repeat(chain.give_up, len(initial)),
    )


def with_vbr(chain: Chain, cv: float, gop_s: float) -> Chain:
    """Play a variable bit rate: sizes of groups of `gop_s` seconds have the coefficient of variation `cv`."""
    if not (0 <= cv < np.inf and 0 <= gop_s < np.inf):
        raise BadInput(f"cv is {cv} and gop_s {gop_s}; give finite numbers, zero or more")
    return replace(chain, variance=chain.variance + cv**2 * gop_s)


def with_abandonment(chain: Chain, per_s: float) -> Chain:
    """Let viewers leave at `per_s` while they wait at the start or in a stall; their mean patience is 1 / per_s."""
    if not 0 <= per_s < np.inf:
        raise BadInput(f"the rate of giving up is {per_s} per second; give a finite number, zero or more")
    return replace(chain, give_up=np.full(chain.num_states, per_s))


def _kron(by_state: Floats, by_phase: Floats) -> Floats:
    return np.outer(by_state, by_phase).ravel()


def _exits(initial: Floats, rates: Floats) -> Floats:
    num = len(initial)
    if num == 0 or rates.shape != (num, num):
        raise BadInput(f"{num} phases come with rates of shape {rates.shape}; make them {num} x {num}")
    exits = -rates.sum(axis=1)
    off_diagonal = rates - np.diag(np.diag(rates))
    if not np.isfinite(rates).all() or off_diagonal.min() < 0 or exits.min() < -1e-9 * np.abs(rates).max():
        raise BadInput("rates between phases must be zero or more, and rows must sum to zero or less")
    if not np.isfinite(np.linalg.cond(rates)):
        raise BadInput("some phases never lead to the end of the video; give every phase a way out")
    return np.asarray(np.maximum(exits, 0.0))
