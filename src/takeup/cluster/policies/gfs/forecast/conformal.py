"""Adaptive conformal calibration: move the level that is read off so that the promised share of outcomes stays below.

Gibbs and Candes, "Adaptive Conformal Inference Under Distribution Shift", NeurIPS 2021, per series, target and level. A
miss raises the level, a hit lowers it a little. The level stays within bounds, so that no long spell has to be repaid.
"""

from __future__ import annotations

import numpy as np

from takeup.core.arrays import Floats

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
        """Make room for new series, which start as promised."""
        num_new = num_series - len(self.shift)
        self.shift = np.concatenate([self.shift, np.zeros((num_new, *self.shift.shape[1:]))])
