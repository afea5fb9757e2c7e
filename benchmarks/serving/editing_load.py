"""Edits that arrive at one device over time: mean latencies in virtual time, of batches that are run or known."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

PUBLIC_MASKS = (1.1, 4.7)
"""A beta distribution with the mean of the public trace, 0.19."""
NUM_EDITS, SEED = 2000, 1


def drawn(rate_hz: float, num_edits: int = NUM_EDITS) -> tuple[list[float], list[float]]:
    """Poisson arrivals, and the masks of the edits."""
    random = np.random.default_rng(SEED)
    arrivals = random.exponential(1 / rate_hz, num_edits).cumsum()
    return arrivals.tolist(), random.beta(*PUBLIC_MASKS, num_edits).tolist()


def mean_latency_s(
    arrivals: Sequence[float], masks: Sequence[float], service_s: Callable[[Sequence[float]], float], max_batch: int
) -> float:
    """Whenever the device is free, those that wait begin together, as many as fit, in the order they came."""
    first, free_s, waited_s = 0, 0.0, 0.0
    while first < len(arrivals):
        begin_s = max(free_s, arrivals[first])
        last = first + 1
        while last < len(arrivals) and last < first + max_batch and arrivals[last] <= begin_s:
            last += 1
        free_s = begin_s + service_s(masks[first:last])
        waited_s += sum(free_s - arrival_s for arrival_s in arrivals[first:last])
        first = last
    return waited_s / len(arrivals)


def between(measured: Mapping[float, float], at: float) -> float:
    """On the lines between measured points; beyond them, at the nearest."""
    points = sorted(measured.items())
    return float(np.interp(at, [one for one, _ in points], [other for _, other in points]))
