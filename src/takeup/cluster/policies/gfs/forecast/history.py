"""The recent hours of every series as one array, without gaps from the first hour on.

How it works. Before its first observation a series is backfilled with its first value, and an hour without a report
repeats the value before: features then need no special cases. `known` tells such hours from observed ones, so that
nothing is learnt from them.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from takeup.core.arrays import Bools, Floats
from takeup.errors import BadInput

HOUR_S = 3600


class DemandHistory:
    """The last `num_hours` hours of a growing number of series; row -1 is the latest."""

    def __init__(self, num_hours: int) -> None:
        self.num_hours, self.num_series, self.end = num_hours, 0, num_hours
        self.hour: int | None = None
        self._values = np.zeros((3 * num_hours, 0))
        self._known = np.zeros((3 * num_hours, 0), dtype=np.bool_)

    @property
    def values(self) -> Floats:
        """`[hour, series]`, oldest first."""
        return self._values[self.end - self.num_hours : self.end]

    @property
    def known(self) -> Bools:
        """Which of the values were observed."""
        return self._known[self.end - self.num_hours : self.end]

    def checked(self, hour: int, values: npt.ArrayLike) -> Floats:
        """The values as an array, after validation against the history."""
        array = np.asarray(values, dtype=np.float64)
        if array.ndim != 1 or len(array) < self.num_series:
            raise BadInput(f"demand has shape {array.shape}, expected one value for each of {self.num_series} series")
        wrong = np.flatnonzero(~np.isfinite(array) | (array < 0))
        if len(wrong):
            found = f"demand of series {wrong[0]} in hour {hour} is {array[wrong[0]]}"
            raise BadInput(f"{found}, expected a finite number of at least 0; leave out hours that nobody measured")
        if self.hour is not None and hour <= self.hour:
            raise BadInput(f"hour {hour} comes after hour {self.hour}; report each hour once, in order")
        return array

    def num_missing(self, hour: int) -> int:
        """Number of unreported hours between the last one and this one."""
        return 0 if self.hour is None else hour - self.hour - 1

    def append(self, hour: int, values: Floats | None) -> None:
        """Add one hour; without values it repeats the last one as unknown."""
        if values is not None and len(values) > self.num_series:
            self._add_series(values)
        if self.end == len(self._values):
            self._values[: self.num_hours], self._known[: self.num_hours] = self.values, self.known
            self.end = self.num_hours
        self._values[self.end] = self._values[self.end - 1] if values is None else values
        self._known[self.end] = values is not None
        self.end, self.hour = self.end + 1, hour

    def _add_series(self, values: Floats) -> None:
        first = values[self.num_series :]
        column = np.broadcast_to(first, (len(self._values), len(first)))
        self._values = np.hstack([self._values, column])
        self._known = np.hstack([self._known, np.zeros(column.shape, dtype=np.bool_)])
        self.num_series = len(values)


class HourlyMaxima:
    """Samples at any times reduced to the maximum of each hour."""

    def __init__(self) -> None:
        self.hour: int | None = None
        self.highest = np.zeros(0)

    def sample(self, time_s: float, values: npt.ArrayLike) -> tuple[int, Floats] | None:
        """Add one sample; returns an hour and its maxima when that hour has just ended, else None."""
        hour, array = int(time_s // HOUR_S), np.asarray(values, dtype=np.float64)
        if self.hour is not None and hour < self.hour:
            raise BadInput(f"a sample of hour {hour} comes after hour {self.hour}; give samples in order of time")
        ended = None if self.hour in (None, hour) else (int(self.hour or 0), self.highest)
        if self.hour == hour:
            num_old = len(self.highest)
            array = np.concatenate([np.maximum(self.highest, array[:num_old]), array[num_old:]])
        self.hour, self.highest = hour, array
        return ended
