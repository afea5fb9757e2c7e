"""A cell in which all players adapt to their own buffer: the others as a mean field, found as a fixed point.

How it works. `abr_buffer` is exact for one video among others with given arrival and end rates. If they adapt as well,
what one of n users receives depends on buffers that are not in the state. On average over all moments with n users it
is some multiple p(n) of what it would be at the usual bit rate, the *pace*. The mean field replaces it by this average:
the others arrive and end as in a cell whose efficiency with n users is p(n).

The tagged video is one of them, so its own pace must be the one assumed. Its life is followed through all waits and
regions: e_i is the probability that its download ends with i others there, t its expected time. Lengths are exponential
in content, so it received e_i times the mean length with i others there; its time m_i there follows from the balance
m Q = e - initial with sum m = t. The ratio of both over the usual rate is p(i + 1), and the next round begins with it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from takeup.core.arrays import Floats
from takeup.errors import BadInput
from takeup.streaming.chains import TaggedVideo, shared_chain
from takeup.streaming.chains.cell import efficiency_of, flows_of
from takeup.streaming.model import Cell, Chain, Player, QoeMetrics
from takeup.streaming.policies.abr_buffer import BufferAbrSolver

PRECISION = 1e-9  # of the mean pace between two rounds
MOST_ROUNDS = 200


@dataclass(frozen=True, slots=True)
class MeanField:
    """The chain that a video sees among others that adapt, for videos of the usual bit rate.

    `paces[n - 1]` is how much more content one of n users receives than at that bit rate, on average.
    """

    chain: Chain
    paces: Floats
    num_rounds: int


def solve_adapting(cell: Cell, player: Player, ladder_bps: Sequence[float], levels_s: Sequence[float]) -> QoeMetrics:
    """What viewers experience when all take `ladder_bps[k]` between `levels_s[k - 1]` and `levels_s[k]` of buffer."""
    solver = BufferAbrSolver(ladder_bps, levels_s, cell.bitrate_bps)
    return solver.solve(mean_field(cell, player, solver).chain, player)


def mean_field(cell: Cell, player: Player, solver: BufferAbrSolver) -> MeanField:
    """The fixed point, from the lowest bit rate on; one that is not reached is an error."""
    _check(cell, player)
    slowest, fastest = (cell.bitrate_bps / solver.ladder_bps[place] for place in (-1, 0))
    paces = np.full(cell.max_users, fastest)
    for num_rounds in range(1, MOST_ROUNDS + 1):
        chain = _chain_among(cell, paces)
        content, seconds = _lived_with(chain, player, solver, cell.mean_video_s)
        usual = chain.fill * seconds
        found = np.where(usual > 0, content / np.where(usual > 0, usual, 1.0), paces)
        change = float(np.abs(np.clip(found, slowest, fastest) - paces) @ seconds / seconds.sum())
        paces = np.clip(found, slowest, fastest)
        if change <= PRECISION * fastest:
            return MeanField(_chain_among(cell, paces), paces, num_rounds)
    raise BadInput(
        f"the mean field still changes by {change:.2g} after {MOST_ROUNDS} rounds; levels_s closer together or a lower "
        "load settle it"
    )


def _check(cell: Cell, player: Player) -> None:
    if cell.capacity is not None or len(cell.views) > 1:
        raise BadInput("a mean field is for a constant capacity and one class of views; leave the others out")
    if player.again_s == 0:
        raise BadInput("a player that resumes at once stalls without end; give a resume threshold above zero")


def _chain_among(cell: Cell, paces: Floats) -> Chain:
    """The chain of a video of the usual bit rate among others that download at these paces."""
    tagged = TaggedVideo(cell.speed, cell.mean_video_s)
    chain = shared_chain(flows_of(cell), tagged, efficiency_of(cell) * paces)
    return replace(chain, fill=chain.fill / paces, end=chain.end / paces)


def _lived_with(chain: Chain, player: Player, solver: BufferAbrSolver, mean_s: float) -> tuple[Floats, Floats]:
    """Content received, and time spent, with 0, 1, .. others there, by one video until its download ends."""
    playing, waiting = solver.phases(chain)
    columns = playing.columns
    start, again = waiting.until(player.start_s).starts_in, waiting.until(player.again_s).starts_in
    before = waiting.collects(player.start_s) + start @ playing.collects(player.start_s)
    cycle = (waiting.collects(player.again_s) + again @ playing.collects(player.again_s))[columns]
    first = chain.initial @ start @ playing.empties(player.start_s)
    returns = (again @ playing.empties(player.again_s))[columns]
    stalls = np.linalg.solve(np.eye(len(columns)) - returns.T, first)
    collected = chain.initial @ before + stalls @ cycle
    ends, total_s = collected[:-1], collected[-1]
    system = np.vstack([chain.generator.T, np.ones(chain.num_states)])
    seconds = np.linalg.lstsq(system, np.append(ends - chain.initial, total_s), rcond=None)[0]
    return ends * mean_s, np.maximum(seconds, 0.0)
