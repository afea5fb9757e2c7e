"""Calibration by past errors: sorted windows of residuals (Numba), pending forecasts, adaptive conformal levels."""

import math
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from takeup.core.arrays import Floats
from takeup.core.compiled import inlined, kernel

# Sliding windows of residuals kept in order, so that a quantile needs one pass and no sorting -------------------------
#
# How it works. The window of a series and target is a ring `residuals[series, target, slot]`; NaN marks an empty slot.
# `order[series, target, :count]` lists its filled slots by (residual, slot). Replacing one slot moves part of that list
# by one place; a weighted quantile walks it once. Weights belong to slots, not to series, because a slot is an hour.

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


class ResidualSummary(NamedTuple):
    """Quantiles `[series, target, level]`, means and variances `[series, target]` of a window."""

    quantiles: Floats
    mean: Floats
    variance: Floats


class ResidualWindow:
    """A window of `num_slots` hours (made even); each settles one residual per series and target, or none (NaN)."""

    def __init__(self, num_targets: int, num_slots: int) -> None:
        self.num_targets, self.num_slots, self.next_slot = num_targets, num_slots + num_slots % 2, 0
        self.values = np.zeros((0, num_targets, self.num_slots))
        self.order = np.zeros((0, num_targets, self.num_slots), dtype=np.int32)
        self.counts = np.zeros((0, num_targets), dtype=np.int64)

    def add(self, residuals: Floats) -> None:
        """Take in one hour; the oldest leaves."""
        self._grow(len(residuals))
        replace_slot(self.values, self.order, self.counts, self.next_slot, residuals)
        self.next_slot = (self.next_slot + 1) % self.num_slots

    def plain(self, levels: Floats) -> Floats:
        """Quantiles with every hour counting the same."""
        quantiles = np.empty(levels.shape)
        plain_quantiles(self.values, self.order, self.counts, levels, quantiles)
        return quantiles

    def weighted(self, weights: Floats, levels: Floats) -> ResidualSummary:
        """Hour by hour with `weights[target, slot]`."""
        quantiles, moments = np.empty(levels.shape), np.empty((*self.counts.shape, 2))
        weighted_quantiles(self.values, self.order, self.counts, weights, levels, quantiles, moments)
        return ResidualSummary(quantiles, moments[:, :, 0], moments[:, :, 1])

    def _grow(self, num_series: int) -> None:
        shape = (num_series - len(self.values), self.num_targets)
        if shape[0]:
            self.values = np.concatenate([self.values, np.full((*shape, self.num_slots), np.nan)])
            self.order = np.concatenate([self.order, np.zeros((*shape, self.num_slots), dtype=np.int32)])
            self.counts = np.concatenate([self.counts, np.zeros(shape, dtype=np.int64)])


class PendingForecasts:
    """Arrays `[series, ...]` of the last `num_hours` origins; NaN where nothing was said about a series."""

    def __init__(self, num_hours: int, *shape: int) -> None:
        self.num_hours, self.next_slot = num_hours, 0
        self.rows = np.full((num_hours, 0, *shape), np.nan)

    def add(self, row: Floats) -> None:
        self.rows[self.next_slot] = row
        self.next_slot = (self.next_slot + 1) % self.num_hours

    def oldest(self) -> Floats:
        """What was said `num_hours` before the coming statement."""
        return np.asarray(self.rows[self.next_slot])

    def due(self, leads: npt.NDArray[np.int64]) -> Floats:
        """`[series, target, ...]`: for each target what was said about it `lead` hours before the coming statement."""
        found = self.rows[(self.next_slot - leads) % self.num_hours, :, np.arange(len(leads))]
        return np.asarray(np.moveaxis(found, 0, 1))

    def grow(self, num_series: int) -> None:
        num_new = num_series - self.rows.shape[1]
        if num_new:
            empty = np.full((self.num_hours, num_new, *self.rows.shape[2:]), np.nan)
            self.rows = np.concatenate([self.rows, empty], axis=1)


# Adaptive conformal calibration: move the level that is read off so that the promised share of outcomes stays below
#
# Gibbs and Candes, "Adaptive Conformal Inference Under Distribution Shift", NeurIPS 2021, per series, target and
# level. A miss raises the level, a hit lowers it a little. The level stays within bounds, so that no long spell has to
# be repaid.

RATE = 0.003


class AdaptiveLevels:
    """The level to read for each promised one, as `[series, target, level]`."""

    def __init__(self, num_targets: int, promised: tuple[float, ...]) -> None:
        self.promised = np.array(promised)
        self.shift = np.zeros((0, num_targets, len(promised)))
        self.rate = RATE * np.minimum(1.0, self.promised * (1.0 - self.promised) / 0.09)

    def update(self, quantiles: Floats, outcomes: Floats) -> None:
        """Compare what was said (NaN: nothing) with what came."""
        missed = outcomes[:, :, None] > quantiles
        settled = np.isfinite(outcomes[:, :, None] + quantiles)
        step = self.rate * (missed - (1.0 - self.promised))
        lowest, highest = -self.promised / 2.0, 0.9 * (1.0 - self.promised)
        self.shift = np.clip(self.shift + np.where(settled, step, 0.0), lowest, highest)

    def levels(self) -> Floats:
        """Between half the promise and a tenth of the risk."""
        return np.asarray(self.promised + self.shift)

    def grow(self, num_series: int) -> None:
        num_new = num_series - len(self.shift)
        self.shift = np.concatenate([self.shift, np.zeros((num_new, *self.shift.shape[1:]))])
