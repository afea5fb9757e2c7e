"""Statements waiting for their outcome: what was said is compared when the last hour it spoke of is over."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from takeup.core.arrays import Floats


class PendingForecasts:
    """Arrays `[series, ...]` of the last `num_hours` origins; NaN where nothing was said about a series."""

    def __init__(self, num_hours: int, *shape: int) -> None:
        self.num_hours, self.next_slot = num_hours, 0
        self.rows = np.full((num_hours, 0, *shape), np.nan)

    def add(self, row: Floats) -> None:
        """What is said now."""
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
        """Make room for new series."""
        num_new = num_series - self.rows.shape[1]
        if num_new:
            empty = np.full((self.num_hours, num_new, *self.rows.shape[2:]), np.nan)
            self.rows = np.concatenate([self.rows, empty], axis=1)
