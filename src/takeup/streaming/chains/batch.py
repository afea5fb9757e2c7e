"""Many plain cells at once, as stacked arrays: for maps, sweeps and fits that ask about a hundred thousand of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from takeup.core.arrays import Floats
from takeup.errors import BadInput
from takeup.streaming.model import Chain


@dataclass(frozen=True, slots=True)
class ChainBatch:
    """Chains with the same number of states, drain 1, no variance and patient viewers, stacked along the first axis."""

    generator: Floats
    end: Floats
    fill: Floats
    initial: Floats
    blocked_share: Floats

    def __len__(self) -> int:
        return len(self.fill)

    def __getitem__(self, place: int) -> Chain:
        """One of the chains, with all checks."""
        return Chain(
            self.generator[place],
            self.end[place],
            self.fill[place],
            self.initial[place],
            blocked_share=float(self.blocked_share[place]),
        )

    def take(self, places: npt.NDArray[np.intp]) -> ChainBatch:
        """Some of the chains, in this order."""
        arrays = (self.generator, self.end, self.fill, self.initial, self.blocked_share)
        return ChainBatch(*(array[places] for array in arrays))


def stack(chains: Sequence[Chain]) -> ChainBatch:
    """Chains of the same number of states as one batch."""
    if not chains or len({chain.num_states for chain in chains}) > 1:
        raise BadInput("a batch needs at least one chain, and all of the same number of states; group them first")
    if any((chain.drain != 1).any() or chain.variance.any() or chain.give_up.any() for chain in chains):
        raise BadInput("a batch takes chains of drain 1 without variance or giving up; solve the others one by one")
    names = ("generator", "end", "fill", "initial", "blocked_share")
    return ChainBatch(*(np.array([getattr(chain, name) for chain in chains]) for name in names))


def ps_cells(speed: npt.ArrayLike, mean_s: npt.ArrayLike, arrivals_per_s: npt.ArrayLike, max_users: int) -> ChainBatch:
    """Cells with plain sharing and exponential lengths; the three arrays are broadcast against each other."""
    speeds, lengths, arrivals = np.broadcast_arrays(*(np.atleast_1d(x) for x in (speed, mean_s, arrivals_per_s)))
    values = np.stack([speeds, lengths, arrivals]).astype(np.float64).reshape(3, -1)
    if not (np.isfinite(values).all() and values.size and values.min() > 0) or max_users < 1:
        raise BadInput("speed, mean_s and arrivals_per_s must be finite and above zero, max_users at least one")
    c, length, rate = values
    users = np.arange(1, max_users + 1)
    fill = c[:, None] / users
    initial, blocked_share = _arrival_laws(np.log(rate) + np.log(length) - np.log(c), max_users)
    return ChainBatch(_generators(rate, fill / length[:, None]), fill / length[:, None], fill, initial, blocked_share)


def _generators(arrivals_per_s: Floats, end: Floats) -> Floats:
    num = end.shape[1]
    rates = np.zeros((len(end), num, num))
    below = np.arange(num - 1)
    rates[:, below, below + 1] = arrivals_per_s[:, None]
    rates[:, below + 1, below] = end[:, 1:] * np.arange(1, num)
    diagonal = np.arange(num)
    rates[:, diagonal, diagonal] = -rates.sum(axis=2)
    return rates


def _arrival_laws(log_load: Floats, max_users: int) -> tuple[Floats, Floats]:
    """The geometric law of the number in the cell, conditioned on admission, and the share blocked."""
    log_weight = log_load[:, None] * np.arange(max_users + 1)
    weight = np.exp(log_weight - log_weight.max(axis=1, keepdims=True))
    accepted = weight[:, :-1].sum(axis=1)
    if accepted.min() <= 0:
        raise BadInput("the load of a cell is so high that practically no video is accepted; lower arrivals_per_s")
    return weight[:, :-1] / accepted[:, None], weight[:, -1] / weight.sum(axis=1)
