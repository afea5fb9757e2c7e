"""What every forecaster does: take one hour at a time, answer with distributions for the next ones. Open this first.

A forecaster is pure: same observations, same forecast, whatever the clock says. It answers from the first hour on, at
any origin, from what was observed until then.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from takeup.cluster.forecast.distribution import DemandDistribution, Forecast, Scope
from takeup.core.arrays import Bools, Floats
from takeup.errors import BadInput

# The recent hours of every series as one array, without gaps from the first hour on -----------------------------------
#
# How it works. Before its first observation a series is backfilled with its first value, and an hour without a report
# repeats the value before: features then need no special cases. `known` tells such hours from observed ones, so that
# nothing is learnt from them.

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


class ForecastTargets:
    """What is predicted, one column each: demand 1 ... F hours ahead, then its maximum over 2 ... F hours."""

    def __init__(self, num_hours: int) -> None:
        self.num_hours = num_hours
        self.leads = np.array([*range(1, num_hours + 1), *range(2, num_hours + 1)])

    def outcomes(self, history: DemandHistory) -> Floats:
        """What the latest hour settles, as `[series, target]`; NaN where an hour since the origin was not observed."""
        values, known = history.values[-self.num_hours :], history.known[-self.num_hours - 1 :]
        highest = np.maximum.accumulate(values[::-1], axis=0)[1:]
        found = np.vstack([np.repeat(values[-1:], self.num_hours, axis=0), highest]).T
        whole = np.logical_and.accumulate(known[::-1], axis=0)[self.leads].T
        return np.where(whole, found, np.nan)

    def origins(self, history: DemandHistory) -> Floats:
        """The value each outcome started from."""
        return np.asarray(history.values[-1 - self.leads].T)

    def changes(self, history: DemandHistory) -> Floats:
        """All targets of the origin F hours ago, less its value; NaN where one of these hours was not observed."""
        values = history.values[-self.num_hours - 1 :] - history.values[-self.num_hours - 1]
        found = np.vstack([values[1:], np.maximum.accumulate(values[1:], axis=0)[1:]]).T
        whole = history.known[-self.num_hours - 1 :].all(axis=0, keepdims=True).T
        return np.where(whole, found, np.nan)

    def forecast(self, scope: Scope, quantiles: Floats, mean: Floats, std: Floats) -> Forecast:
        """Columns sorted into values and maxima; the maximum over one hour is its value."""
        at = list(range(self.num_hours)), [0, *range(self.num_hours, len(self.leads))]
        values, maxima = (
            DemandDistribution(quantiles[:, columns], mean[:, columns], std[:, columns]) for columns in at
        )
        return Forecast(tuple(range(1, self.num_hours + 1)), scope.levels, values, maxima)


class Forecaster(ABC):
    """Base of all models: checks input, fills gaps, tidies the answer."""

    def __init__(self, scope: Scope | None = None, num_hours_kept: int = 192) -> None:
        self.scope = scope or Scope()
        self.targets = ForecastTargets(self.scope.num_hours)
        self.history = DemandHistory(num_hours_kept)

    def observe(self, hour: int, values: npt.ArrayLike) -> None:
        """Demand of every series in this hour; hours rise, may be missing, and later ones may bring new series."""
        array = self.history.checked(hour, values)
        for age in range(min(self.history.num_missing(hour), self._memory_hours()), 0, -1):
            self._step(hour - age, None)
        self._step(hour, array)

    def forecast(
        self,
        horizons: Sequence[int] | None = None,
        levels: Sequence[float] | None = None,
        capacity: Floats | float | None = None,
    ) -> Forecast:
        """The next hours after the last one observed; never above `capacity` (of all series, or one each)."""
        if self.history.hour is None:
            raise BadInput("nothing was observed yet; call observe(hour, values) before forecast()")
        return self._predict().tidied(capacity).select(horizons, levels)

    def _step(self, hour: int, values: Floats | None) -> None:
        self.history.append(hour, values)
        self._learn()

    def _memory_hours(self) -> int:
        """After a gap of this length nothing from before it is in use."""
        return self.history.num_hours

    def _learn(self) -> None:  # noqa: B027  models without memory of their own learn nothing
        """Take in the hour just appended."""

    @abstractmethod
    def _predict(self) -> Forecast:
        """The raw distribution; it may cross capacity."""
