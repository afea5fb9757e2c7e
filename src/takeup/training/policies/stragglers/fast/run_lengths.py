"""Posterior over run lengths: how long times have been drawn from the same normal distribution, updated per point.

Bayesian online change-point detection (Adams and MacKay, 2007) with a normal-inverse-gamma prior. Every run length
carries its posterior parameters; improbable run lengths are pruned, so a point costs little.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from takeup.core.arrays import Floats, Ints
from takeup.core.compiled import inner, kernel

INCREDIBLE = -18.0  # pruning threshold: log probability relative to the likeliest


class RunPrior(NamedTuple):
    """Prior of a new run: its mean, worth `weight` points; shape and rate of its precision; the hazard."""

    mean: float
    weight: float
    shape: float
    rate: float
    hazard: float


class RunLengths(NamedTuple):
    """Retained run lengths: `size[0]` of them, each with its number of points, parameters and log probability."""

    size: Ints
    length: Ints
    mean: Floats
    rate: Floats
    log_share: Floats


def initial_run_lengths(most: int) -> RunLengths:
    """Initial state before the first point, with capacity for `most` run lengths."""
    return RunLengths(np.zeros(1, np.int64), np.zeros(most, np.int64), *np.zeros((3, most)))


@inner
def _log_density(prior: RunPrior, length: int, mean: float, rate: float, value: float) -> float:
    """Predictive log density of the next point under this run's parameters: Student's t."""
    weight, shape = prior.weight + length, prior.shape + 0.5 * length
    spread = 2.0 * rate * (weight + 1.0) / weight
    off = value - mean
    return _front(shape) - 0.5 * math.log(math.pi * spread) - (shape + 0.5) * math.log1p(off * off / spread)


@inner
def _front(shape: float) -> float:
    """The logarithm of Gamma(shape + 1/2) / Gamma(shape), to eight digits: a series is used for all but short runs."""
    if shape < 10.0:
        return math.lgamma(shape + 0.5) - math.lgamma(shape)
    return 0.5 * math.log(shape) - 1 / (8 * shape) + 1 / (192 * shape**3) - 1 / (640 * shape**5)


@kernel
def update_run_lengths(prior: RunPrior, runs: RunLengths, value: float) -> None:
    """Update with one more point."""
    if runs.size[0] == 0:
        runs.size[0] = 1
        runs.length[0], runs.mean[0], runs.rate[0], runs.log_share[0] = 0, prior.mean, prior.rate, 0.0
    number = runs.size[0]
    fresh = -np.inf
    best = -np.inf
    stay = math.log1p(-prior.hazard)
    for each in range(number):
        seen = runs.log_share[each] + _log_density(prior, runs.length[each], runs.mean[each], runs.rate[each], value)
        fresh = max(fresh, seen) + math.log1p(math.exp(-abs(fresh - seen))) if fresh > -np.inf else seen
        runs.log_share[each] = seen + stay
        best = max(best, seen + stay)
        _learn(prior, runs, each, value)
    fresh += math.log(prior.hazard)
    _keep(prior, runs, fresh, max(best, fresh))


@inner
def _learn(prior: RunPrior, runs: RunLengths, each: int, value: float) -> None:
    weight = prior.weight + runs.length[each]
    off = value - runs.mean[each]
    runs.rate[each] += weight * off * off / (2.0 * (weight + 1.0))
    runs.mean[each] += off / (weight + 1.0)
    runs.length[each] += 1


@inner
def _keep(prior: RunPrior, runs: RunLengths, fresh: float, best: float) -> None:
    """Prune improbable runs, and the least likely one if the buffer is full; then begin a new run."""
    kept = 0
    for each in range(runs.size[0]):
        if runs.log_share[each] > best + INCREDIBLE:
            runs.length[kept], runs.mean[kept] = runs.length[each], runs.mean[each]
            runs.rate[kept], runs.log_share[kept] = runs.rate[each], runs.log_share[each]
            kept += 1
    if kept == len(runs.length):
        kept = _drop_least(runs, kept)
    runs.length[kept], runs.mean[kept], runs.rate[kept] = 0, prior.mean, prior.rate
    runs.log_share[kept] = fresh
    runs.size[0] = kept + 1
    total = 0.0
    for each in range(runs.size[0]):
        total += math.exp(runs.log_share[each] - best)
    for each in range(runs.size[0]):
        runs.log_share[each] -= best + math.log(total)


@inner
def _drop_least(runs: RunLengths, number: int) -> int:
    """Remove the least likely run, keeping the order of the others."""
    least = 0
    for each in range(number):
        if runs.log_share[each] < runs.log_share[least]:
            least = each
    for each in range(least, number - 1):
        runs.length[each], runs.mean[each] = runs.length[each + 1], runs.mean[each + 1]
        runs.rate[each], runs.log_share[each] = runs.rate[each + 1], runs.log_share[each + 1]
    return number - 1
