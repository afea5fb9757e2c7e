"""Censoring: take states out of a Markov chain in which nothing happens to the buffer, without changing the answer.

How it works. A system 0 = F + A x, with x_z wanted for its own sake no more, is solved for the states z that go:

    x_z = N (F_z + A_zk x_k),   N = -A_zz^-1   (expected seconds spent in z)

and put back into the rows of the states k that stay: A_kk + A_kz N A_zk and F_k + A_kz N F_z. In words: a visit to z is
a jump to wherever it ends, and what was collected on the way (time, ends of downloads) is credited to the jump.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from takeup.core.arrays import Floats
from takeup.errors import BadInput

Numbers = npt.NDArray[Any]  # real or complex


@dataclass(frozen=True, slots=True)
class CensoredChain:
    """What is left of a chain: rates and sources of the states kept, and how those gone follow from them."""

    kept: npt.NDArray[np.bool_]
    rates: Floats
    sources: Floats
    reach: Floats
    collected: Floats

    def restore(self, values: Floats, collected: Floats | float = 0.0) -> Floats:
        """Values for all states from those of the kept ones."""
        everywhere = np.zeros((len(self.kept), values.shape[1]))
        everywhere[self.kept] = values
        everywhere[~self.kept] = self.reach @ values + collected
        return everywhere


def censor(rates: Floats, kept: npt.NDArray[np.bool_], sources: Floats | None = None) -> CensoredChain:
    """The chain watched only in the `kept` states; `sources` (one row per state) are collected per second."""
    collects = np.zeros((len(rates), 0)) if sources is None else sources
    if kept.all():
        return CensoredChain(kept, rates, collects, np.zeros((0, len(rates))), collects[:0])
    stay, leave = rates[np.ix_(kept, kept)], rates[np.ix_(kept, ~kept)]
    found = _solve_censored(-rates[np.ix_(~kept, ~kept)], np.hstack([rates[np.ix_(~kept, kept)], collects[~kept]]))
    reach, collected = found[:, : len(stay)], found[:, len(stay) :]
    return CensoredChain(kept, stay + leave @ reach, collects[kept] + leave @ collected, reach, collected)


def _solve_censored(rates: Floats, goals: Floats) -> Floats:
    try:
        return np.asarray(np.linalg.solve(rates, goals), dtype=np.float64)
    except np.linalg.LinAlgError as error:
        reason = "a video could wait forever in states where its buffer never changes"
        raise BadInput(f"{reason}; give these states an end rate or a way out") from error


def censor_transforms(rates: Numbers, kept: npt.NDArray[np.bool_]) -> tuple[Numbers, Numbers]:
    """The same for stacked complex rates: those between kept states, and the reach of kept states from the others."""
    if kept.all():
        return rates, rates[..., :0, :]
    gone = rates[..., ~kept, :]
    reach = np.linalg.solve(-gone[..., ~kept], gone[..., kept])
    stay = rates[..., kept, :]
    return stay[..., kept] + stay[..., ~kept] @ reach, reach


def restore_transforms(values: Numbers, kept: npt.NDArray[np.bool_], reach: Numbers) -> Numbers:
    """Values for all states from those of the kept ones, stacked."""
    everywhere = np.empty((*values.shape[:-2], len(kept), values.shape[-1]), dtype=values.dtype)
    everywhere[..., kept, :] = values
    everywhere[..., ~kept, :] = reach @ values
    return everywhere
