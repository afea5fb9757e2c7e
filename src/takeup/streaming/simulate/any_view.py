"""Tagged videos of every class of views together, each class as often as it arrives."""

from __future__ import annotations

import numpy as np
from scipy.linalg import block_diag

from takeup.streaming.chains import chain_of
from takeup.streaming.model import Cell, Chain, Player, QoeMetrics
from takeup.streaming.simulate.tagged import simulate_tagged


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
