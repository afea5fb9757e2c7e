"""Exponentials of many small matrices at once, in plain numpy products.

How it works. A matrix is halved s times until it is small, its Taylor series of degree 16 is summed with six products
(Paterson and Stockmeyer: a polynomial of degree 3 in A^4 whose coefficients are polynomials in A), and the result is
squared s times. Matrices of rates are shifted first by their largest diagonal entry: then all terms are zero or more,
nothing cancels, and the result has no negative entry. Products of stacks of small matrices are fast in numpy and take
no threads, unlike an exponential that calls a library for each of them.
"""

from __future__ import annotations

from math import ceil, factorial, log2
from typing import Any

import numpy as np
import numpy.typing as npt

from takeup.core.arrays import Floats

Numbers = npt.NDArray[Any]  # real or complex

COEFFICIENTS = [1 / factorial(power) for power in range(17)]


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
