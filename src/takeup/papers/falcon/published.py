"""What the paper prints, as it is printed: iterations by autocorrelation, and alarms by run lengths or two windows."""

import math
from collections.abc import Iterator

import numpy as np

from takeup.core.arrays import Floats, Ints
from takeup.core.compiled import kernel
from takeup.training.stragglers.detect.kernels import RunLengths, RunPrior, update_run_lengths

# Iterations in a strictly periodic log: it takes twenty, and finds nothing if calls are alike or some are occasional


def period_by_autocorrelation(tokens: Ints, *, most_lags: int = 200, least: float = 0.95) -> int | None:
    """The number of calls in an iteration: the first lag with this much autocorrelation."""
    return next((lag for lag, value in _autocorrelations(tokens, most_lags) if value >= least), None)


def _autocorrelations(tokens: Ints, most_lags: int) -> Iterator[tuple[int, float]]:
    centred = tokens - np.mean(tokens) if len(tokens) else np.zeros(0)
    total = float(centred @ centred)
    if total > 0:
        for lag in range(1, min(most_lags, len(tokens) - 1) + 1):
            yield lag, float(centred[:-lag] @ centred[lag:]) / total


# Inputs of the rules for alarms, for every point of a stream ----------------------------------------------------------


@kernel
def run_length_probabilities(
    prior: RunPrior, runs: RunLengths, values: Floats, length: int, fresh: Floats, near: Floats
) -> None:
    """By point: the probability of run length zero, and of `length` or one more or less."""
    for now in range(len(values)):
        update_run_lengths(prior, runs, values[now])
        fresh[now] = 0.0
        near[now] = 0.0
        for each in range(runs.size[0]):
            share = math.exp(runs.log_share[each])
            if runs.length[each] == 0:
                fresh[now] += share
            if abs(runs.length[each] - length) <= 1:
                near[now] += share


@kernel
def sliding_window_alarms(values: Floats, num_now: int, num_before: int, least_ratio: float, slower: Ints) -> None:
    """By point: 1 if the window says slower there, -1 if faster; the window restarts after each alarm."""
    began = 0
    for end in range(num_now + 1, len(values) + 1):
        start = end - num_now
        if start - began >= num_now:
            now, before = np.median(values[start:end]), np.median(values[max(began, start - num_before) : start])
            if abs(now - before) > least_ratio * max(now, before):
                slower[end - 1] = 1 if now > before else -1
                began = start
