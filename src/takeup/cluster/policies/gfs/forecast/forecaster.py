"""What every forecaster does: take one hour at a time, answer with distributions for the next ones. Open this first.

A forecaster is pure: same observations, same forecast, whatever the clock says. It answers from the first hour on, at
any origin, from what was observed until then.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from takeup.cluster.policies.gfs.forecast.distribution import DemandDistribution, Forecast, Scope
from takeup.cluster.policies.gfs.forecast.history import DemandHistory
from takeup.core.arrays import Floats
from takeup.errors import BadInput


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
