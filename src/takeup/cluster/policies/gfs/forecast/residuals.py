"""The last weeks of forecast errors per series and target, with quantiles kept ready."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from takeup.cluster.policies.gfs.forecast.fast.windows import plain_quantiles, replace_slot, weighted_quantiles
from takeup.core.arrays import Floats


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
