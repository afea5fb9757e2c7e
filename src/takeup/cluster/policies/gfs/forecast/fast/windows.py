"""Sliding windows of residuals kept in order, so that a quantile needs one pass and no sorting.

How it works. The window of a series and target is a ring `residuals[series, target, slot]`; NaN marks an empty slot.
`order[series, target, :count]` lists its filled slots by (residual, slot). Replacing one slot moves part of that list
by one place; a weighted quantile walks it once. Weights belong to slots, not to series, because a slot is an hour.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from takeup.core.arrays import Floats
from takeup.core.compiled import inlined, kernel

Slots = npt.NDArray[np.int32]
Counts = npt.NDArray[np.int64]
NEARLY = 1e-12  # a level met but for rounding is met


@inlined
def _place(residuals: Floats, order: Slots, count: int, residual: float, slot: int) -> int:
    """Where (residual, slot) stands, or would stand, in the order."""
    low, high = 0, count
    while low < high:
        middle = (low + high) // 2
        other = residuals[order[middle]]
        if other < residual or (other == residual and order[middle] < slot):
            low = middle + 1
        else:
            high = middle
    return low


@inlined
def _move(order: Slots, start: int, end: int, slot: int) -> None:
    """Take the entry at `start` out and put `slot` in at `end`; those between move up by one place."""
    for place in range(start, end):
        order[place] = order[place + 1]
    for place in range(start, end, -1):
        order[place] = order[place - 1]
    order[end] = slot


@kernel
def replace_slot(residuals: Floats, order: Slots, counts: Counts, slot: int, fresh: Floats) -> None:
    """Put `fresh[series, target]` into one slot of every window; NaN empties it."""
    for series in range(fresh.shape[0]):
        for target in range(fresh.shape[1]):
            window, row, count = residuals[series, target], order[series, target], counts[series, target]
            before, after = window[slot], fresh[series, target]
            start, end = count, count
            if not math.isnan(before):
                start = _place(window, row, count, before, slot)
                end = count - 1
            if not math.isnan(after):
                end = _place(window, row, count, after, slot)
                end -= end > start
            if not (math.isnan(before) and math.isnan(after)):
                _move(row, start, end, slot)
            window[slot] = after
            counts[series, target] = count + (not math.isnan(after)) - (not math.isnan(before))


@kernel
def plain_quantiles(residuals: Floats, order: Slots, counts: Counts, levels: Floats, quantiles: Floats) -> None:
    """At `levels[series, target, level]`, every hour counting the same; zero where a window is empty."""
    for series in range(levels.shape[0]):
        for target in range(levels.shape[1]):
            window, row, count = residuals[series, target], order[series, target], counts[series, target]
            for level in range(levels.shape[2]):
                rank = math.ceil(levels[series, target, level] * count * (1.0 - NEARLY)) - 1
                quantiles[series, target, level] = window[row[max(rank, 0)]] if count else 0.0


@inlined
def _sums(window: Floats, weights: Floats) -> tuple[float, float, float]:
    """Of weights, weighted residuals and weighted squares over the filled slots."""
    total, first, second = 0.0, 0.0, 0.0
    other_total, other_first, other_second = 0.0, 0.0, 0.0  # two chains of additions run side by side
    for slot in range(0, window.shape[0] - 1, 2):
        left, right = window[slot], window[slot + 1]
        if not math.isnan(left):
            total += weights[slot]
            first += weights[slot] * left
            second += weights[slot] * left * left
        if not math.isnan(right):
            other_total += weights[slot + 1]
            other_first += weights[slot + 1] * right
            other_second += weights[slot + 1] * right * right
    return total + other_total, first + other_first, second + other_second


@kernel
def weighted_quantiles(
    residuals: Floats, order: Slots, counts: Counts, weights: Floats, levels: Floats, quantiles: Floats, moments: Floats
) -> None:
    """As the plain ones, hour by hour with `weights[target, slot]`; `moments` are mean and variance.

    The walk goes down from the largest residual and stops at the lowest level. The number of slots is even.
    """
    for series in range(levels.shape[0]):
        for target in range(levels.shape[1]):
            window, row, weight = residuals[series, target], order[series, target], weights[target]
            total, first, second = _sums(window, weight)
            place, below = counts[series, target] - 1, total
            for level in range(levels.shape[2] - 1, -1, -1):
                wanted = levels[series, target, level] * total - NEARLY * total
                while place > 0 and below - weight[row[place]] >= wanted:
                    below -= weight[row[place]]
                    place -= 1
                quantiles[series, target, level] = window[row[place]] if place >= 0 else 0.0
            mean = first / total if place >= 0 else 0.0
            moments[series, target, 0] = mean
            moments[series, target, 1] = max(0.0, second / total - mean * mean) if place >= 0 else 0.0
