"""What the next hours may depend on, all relative to the current value and in units of the usual hourly change.

Columns: recent hours; the same hours and their neighbours one day, two days and one week back; means of the last 6, 24,
168 and 672 hours; the extremes of the last day; a constant; and the hour of the day. Anchored on the present and scaled
by the movement of the series itself, organisations of any size share weights, and a shift of level does no harm.
"""

from __future__ import annotations

import numpy as np

from takeup.cluster.policies.gfs.forecast.history import DemandHistory
from takeup.core.arrays import Floats

LAGS = (1, 2, 3, 4, 6, 12)
SEASONS = (24, 48, 168)
MEANS = (6, 24, 168, 672)
LONGEST_HOURS = max(MEANS)
HOURS_A_DAY = 24
LARGEST = 20.0  # a jump of more usual changes than this teaches no more than one of this size
MEMORY_HOURS = 336
LEAST_SCALE = 1e-6


class DemandFeatures:
    """Rows of features, one per series, and the running scale they are measured in."""

    def __init__(self, num_hours: int) -> None:
        lags = [*LAGS, *(season - ahead for season in SEASONS for ahead in range(num_hours + 1))]
        self.rows = -1 - np.array(lags)
        self.num_columns = len(lags) + len(MEANS) + 2 + 1 + HOURS_A_DAY
        self.largest, self.least_unit = LARGEST, LEAST_SCALE
        self.scale = np.zeros(0)
        self.num_seen = np.zeros(0)

    def update(self, history: DemandHistory) -> None:
        """Let the latest hour count in the scale: a mean of absolute hourly changes that forgets over two weeks."""
        num_new = history.num_series - len(self.scale)
        self.scale, self.num_seen = (np.concatenate([each, np.zeros(num_new)]) for each in (self.scale, self.num_seen))
        known = history.known[-2:].all(axis=0)
        self.num_seen += known
        change = np.abs(history.values[-1] - history.values[-2])
        rate = known / np.clip(self.num_seen, 1.0, MEMORY_HOURS)
        self.scale += rate * (change - self.scale)

    def unit(self) -> Floats:
        """The scale, safe to divide by."""
        return np.maximum(self.scale, LEAST_SCALE)

    def matrix(self, history: DemandHistory) -> Floats:
        """`[series, column]` at the latest hour."""
        values, day = history.values, history.values[-HOURS_A_DAY:]
        means = [values[-num:].mean(axis=0) for num in MEANS]
        levels = np.vstack([values[self.rows], *means, day.max(axis=0), day.min(axis=0)])
        moves = np.clip((levels - values[-1]) / self.unit(), -LARGEST, LARGEST).T
        hour = np.zeros((len(moves), 1 + HOURS_A_DAY))
        hour[:, [0, 1 + (history.hour or 0) % HOURS_A_DAY]] = 1.0
        return np.hstack([moves, hour])
