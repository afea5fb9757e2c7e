"""One video after the other, each alone on the chain that it sees: the quickest check of a solver.

A video of fixed length ignores the end rates of the chain and counts the content that has come. A chain with variance
is refused: what varies within a state is for `slots`.
"""

import numpy as np
from scipy.linalg import block_diag

from takeup.core.seeds import Streams
from takeup.errors import BadInput
from takeup.streaming.chains import chain_of
from takeup.streaming.model import Cell, Chain, Player, QoeMetrics
from takeup.streaming.simulate.compiled.tagged import ChainWalk, play_videos
from takeup.streaming.simulate.video_records import VideoRecords, check_run, empty_records, metrics_from_independent


def simulate_tagged(
    chain: Chain, player: Player, *, num_videos: int = 400_000, seed: int = 0, length_s: float | None = None
) -> QoeMetrics:
    """What viewers experience on `chain`, from independent videos; `length_s` makes all of them equally long."""
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
    play_videos(walk, player.start_s, player.again_s, np.inf if length_s is None else length_s, chance, lived)
    return lived


def _check_chain(chain: Chain, length_s: float | None) -> None:
    if chain.variance.any():
        raise BadInput("the chain has a variance, which tagged videos do not play; simulate the cell by slots instead")
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
        give_up=np.array(chain.give_up, np.float64),
        impatient=bool(chain.give_up.any()),
        initial_upto=np.cumsum(chain.initial),
    )


# Tagged videos of every class of views together, each class as often as it arrives ------------------------------------


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
