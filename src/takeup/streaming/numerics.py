"""Numerics of the solvers: matrix exponentials, ordered Schur bases, censored Markov chains, Laplace inversion.

Numpy only; scipy's Schur form is imported on first use.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from math import ceil, factorial, log2
from typing import Any

import numpy as np
import numpy.typing as npt

from takeup.core.arrays import Complexes, Floats
from takeup.errors import BadInput

Numbers = npt.NDArray[Any]  # real or complex

COEFFICIENTS = [1 / factorial(power) for power in range(17)]

# Exponentials of many small matrices at once, in plain numpy products -------------------------------------------------
#
# How it works. A matrix is halved s times until it is small, its Taylor series of degree 16 is summed with six products
# (Paterson and Stockmeyer: a polynomial of degree 3 in A^4 whose coefficients are polynomials in A), and the result is
# squared s times. Matrices of rates are shifted first by their largest diagonal entry: then all terms are zero or more,
# nothing cancels, and the result has no negative entry. Products of stacks of small matrices are fast in numpy and take
# no threads, unlike an exponential that calls a library for each of them.


def expm_many(matrices: Numbers) -> Numbers:
    """exp of every matrix of a stack, real or complex."""
    norm = float(np.abs(matrices).sum(axis=-1).max(initial=0.0))
    num_halvings = _num_halvings(norm, 1.0)
    return _repeated_square(_taylor_series(matrices / 2.0**num_halvings), num_halvings)


def expm_of_rates(rates: Floats) -> Floats:
    """exp of every matrix of a stack whose off-diagonal entries are zero or more."""
    shift = np.maximum(-np.diagonal(rates, axis1=-2, axis2=-1).min(axis=-1, initial=0.0), 0.0)[..., None, None]
    num_halvings = _num_halvings(float(shift.max(initial=0.0)), 0.5)
    shift = shift / 2.0**num_halvings
    positive = rates / 2.0**num_halvings + shift * np.eye(rates.shape[-1])
    return np.asarray(_repeated_square(_taylor_series(positive) * np.exp(-shift), num_halvings), dtype=np.float64)


def _num_halvings(size: float, small: float) -> int:
    return ceil(log2(size / small)) if size > small else 0


def _taylor_series(matrix: Numbers) -> Numbers:
    square = matrix @ matrix
    powers = (np.eye(matrix.shape[-1]), matrix, square, square @ matrix)
    fourth = square @ square
    total: Numbers = fourth * COEFFICIENTS[16]
    for lowest in (12, 8, 4, 0):
        for power, term in enumerate(powers):
            total = total + COEFFICIENTS[lowest + power] * term
        total = total @ fourth if lowest else total
    return total


def _repeated_square(matrix: Numbers, times: int) -> Numbers:
    for _ in range(times):
        matrix = matrix @ matrix
    return matrix


def stable_schur_basis(matrix: Floats) -> tuple[Floats, int]:
    """An orthonormal basis that begins with the directions of a matrix that decay, and how many they are."""
    from scipy.linalg import schur  # whose import takes as long as hundreds of answers

    _, basis, num_found = schur(matrix, sort="lhp")
    return basis, int(num_found)


def are_connected(rates: npt.NDArray[Any]) -> bool:
    """Whether every state leads to every other one."""
    reached: npt.NDArray[np.bool_] = (rates > 0) | np.eye(len(rates), dtype=np.bool_)
    for _ in range(len(rates).bit_length()):
        reached = reached @ reached  # in twice as many steps
    return bool(reached.all())


# Censoring: take states out of a Markov chain in which nothing happens to the buffer, without changing the answer -----
#
# How it works. A system 0 = F + A x, with x_z wanted for its own sake no more, is solved for the states z that go:
#
#     x_z = N (F_z + A_zk x_k),   N = -A_zz^-1   (expected seconds spent in z)
#
# and put back into the rows of the states k that stay: A_kk + A_kz N A_zk and F_k + A_kz N F_z. In words: a visit to z
# is a jump to wherever it ends, and what was collected on the way (time, ends of downloads) is credited to the jump.


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


# Numerical inversion of Laplace transforms by Euler summation ---------------------------------------------------------
#
# How it works. On the line Re s = a / 2t the inversion integral becomes an alternating series,
#
#     f(t) ~ e^(a/2)/t  [ Re F(a/2t) / 2  +  sum_{k>=1} (-1)^k Re F((a + 2 pi i k) / 2t) ],
#
# whose tail is summed by binomial averages of its partial sums. Aliasing costs e^-a (1e-8 for a = 18.4). The sum is
# accurate where f is smooth: take jumps out analytically first.
#
# Abate, Whitt, "Numerical inversion of Laplace transforms of probability distributions", ORSA J. Comput. 1995.

DISCRETISATION = 18.4
NUM_AVERAGED = 40  # enough that a kink of f elsewhere does not spoil the sum
NUM_TERMS = 40


def invert_laplace(transform: Callable[[Complexes], Complexes], times: Floats, num_terms: int = NUM_TERMS) -> Floats:
    """f at `times` (above zero) from its transform, which takes nodes (m,) and gives values (m,) or (m, outputs)."""
    offsets, weights = _euler_nodes(num_terms)
    nodes = (offsets[None, :] / (2 * times[:, None])).ravel()
    values = transform(nodes).real
    shaped = values.reshape(len(times), len(offsets), *values.shape[1:])
    summed = np.tensordot(shaped, weights, axes=(1, 0))
    scale = np.exp(DISCRETISATION / 2) / times
    return np.asarray(summed * scale.reshape(-1, *[1] * (summed.ndim - 1)), dtype=np.float64)


@cache
def _euler_nodes(num_terms: int) -> tuple[Complexes, Floats]:
    count = np.arange(num_terms + NUM_AVERAGED + 1)
    binomial = np.array([math.comb(NUM_AVERAGED, k) for k in range(NUM_AVERAGED + 1)]) / 2.0**NUM_AVERAGED
    kept = np.ones(len(count))
    kept[num_terms:] = np.cumsum(binomial[::-1])[::-1]
    weights = (-1.0) ** count * kept
    weights[0] /= 2
    return (DISCRETISATION + 2j * np.pi * count).astype(np.complex128), weights
