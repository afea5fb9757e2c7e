"""Where iterations begin in a log of calls that does not mark them.

A rank calls the same collectives in every iteration, and occasionally others: to log, to evaluate, to save. `find_marker`
looks for the calls that occur once per iteration and takes the most regular as the clock; calls in between cannot
shift it. `period_by_autocorrelation` is the published way, for comparison: it needs twenty iterations of a strictly periodic
log, and finds nothing if the calls do not differ or if one occurs only occasionally.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from takeup.core.arrays import Floats, Ints
from takeup.errors import BadInput

LEAST_ITERATIONS = 5
TOLERANCE_CALLS, TOLERANCE_SHARE = 2, 0.05  # tolerance for a count to be a multiple
LEAST_SHARE = 0.6  # minimum share of the calls that must be explained
WORSE, WORSE_IF_STEADY = 0.1, 0.2  # tolerance below the best share: occasional calls have a (longer) period, too
STEADY = 0.6


@dataclass(frozen=True, slots=True)
class IterationMarker:
    """The call that marks iterations, how many were seen, and which share of all calls they explain."""

    token: int
    num_iterations: int
    explained_share: float


def find_marker(tokens: Ints) -> IterationMarker | None:
    """The clock of a log in which each sort of call (operation, size, group, peer) is a number; None if none fits.

    The number of iterations is the largest of which the counts of calls are multiples, for most calls. So leave
    out calls made per micro-batch or layer (messages of a pipeline, calls of tensor parallelism): by counts alone
    a micro-batch cannot be told from an iteration.
    """
    kinds, counts = np.unique(tokens, return_counts=True)
    numbers = [number for number in sorted(set(counts.tolist()), reverse=True) if number >= LEAST_ITERATIONS]
    shares = {number: float(counts[_near_multiples(counts, number)].sum() / len(tokens)) for number in numbers}
    best = max(shares.values(), default=0.0)
    for number in numbers:
        once = kinds[np.abs(counts - number) <= _tolerance(number)].tolist()
        token = max(once, key=lambda token: _steadiness(tokens, token))
        worse = WORSE_IF_STEADY if _steadiness(tokens, token) >= STEADY else WORSE
        if shares[number] >= max(LEAST_SHARE, best - worse):
            return IterationMarker(token, number, shares[number])
    return None


def _near_multiples(counts: Ints, num_iterations: int) -> npt.NDArray[np.bool_]:
    times = np.maximum(1, np.rint(counts / num_iterations))
    near: npt.NDArray[np.bool_] = np.abs(counts - times * num_iterations) <= times * _tolerance(num_iterations)
    return near


def _tolerance(num_iterations: int) -> float:
    """Logs begin and end in the middle of an iteration; but a tolerance of two in five would match anything."""
    return min(max(TOLERANCE_CALLS, TOLERANCE_SHARE * num_iterations), num_iterations / 4)


def _steadiness(tokens: Ints, token: int) -> float:
    """Share of intervals between consecutive occurrences that contain the most common number of calls."""
    gaps = np.diff(np.flatnonzero(tokens == token))
    return float(np.bincount(gaps).max() / len(gaps)) if len(gaps) else 0.0


def iterations_s(tokens: Ints, times_s: Floats, clock: IterationMarker) -> Floats:
    """Iteration times: from one call of the clock to the next."""
    if len(tokens) != len(times_s):
        raise BadInput(f"{len(tokens)} calls with {len(times_s)} times; give one time for every call")
    return np.diff(times_s[tokens == clock.token])


# As published ---------------------------------------------------------------------------------------------------------


def period_by_autocorrelation(tokens: Ints, *, most_lags: int = 200, least: float = 0.95) -> int | None:
    """The number of calls in an iteration: the first lag with this much autocorrelation."""
    return next((lag for lag, value in _autocorrelations(tokens, most_lags) if value >= least), None)


def _autocorrelations(tokens: Ints, most_lags: int) -> Iterator[tuple[int, float]]:
    centred = tokens - np.mean(tokens) if len(tokens) else np.zeros(0)
    total = float(centred @ centred)
    if total > 0:
        for lag in range(1, min(most_lags, len(tokens) - 1) + 1):
            yield lag, float(centred[:-lag] @ centred[lag:]) / total
