"""What every forecaster does: take one hour at a time, answer with distributions for the next ones. Open this first.

A forecaster is pure: same observations, same forecast, whatever the clock says. It answers from the first hour on, at
any origin, from what was observed until then.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from takeup.core.arrays import Bools, Floats
from takeup.errors import BadInput


@dataclass(frozen=True, slots=True)
class Scope:
    """What a forecaster is asked for: hours 1 to `num_hours` ahead, at these levels."""

    num_hours: int = 4
    levels: tuple[float, ...] = (0.5, 0.8, 0.9, 0.95, 0.99)

    def __post_init__(self) -> None:
        if not 1 <= self.num_hours <= 24:
            raise BadInput(f"{self.num_hours} hours ahead cannot be forecast; choose 1 to 24")
        inside = all(0.0 < level < 1.0 for level in self.levels)
        if not self.levels or not inside or list(self.levels) != sorted(set(self.levels)):
            raise BadInput(f"levels {self.levels} are not a rising list between 0 and 1; write for example (0.5, 0.9)")


@dataclass(frozen=True, slots=True)
class DemandDistribution:
    """One quantity as a distribution: `quantiles[series, hour, level]`, `mean` and `std` by [series, hour]."""

    quantiles: Floats
    mean: Floats
    std: Floats

    def at(self, hours: Sequence[int], levels: Sequence[int]) -> DemandDistribution:
        """The part at these positions."""
        return DemandDistribution(self.quantiles[:, hours][:, :, levels], self.mean[:, hours], self.std[:, hours])

    def clipped(self, highest: Floats | float) -> DemandDistribution:
        """Not negative, not above `highest`, and rising with the level."""
        limit = np.broadcast_to(np.asarray(highest, dtype=np.float64), len(self.mean))[:, None]
        rising = np.maximum.accumulate(self.quantiles, axis=2)
        return DemandDistribution(np.clip(rising, 0.0, limit[:, :, None]), np.clip(self.mean, 0.0, limit), self.std)


@dataclass(frozen=True, slots=True)
class Forecast:
    """Demand of each series in each of the coming `horizons` (hours), and its maximum from now until then."""

    horizons: tuple[int, ...]
    levels: tuple[float, ...]
    values: DemandDistribution
    maxima: DemandDistribution

    def bound(self, hours: int, level: float, of: Literal["maximum", "value"] = "maximum") -> Floats:
        """Per series, what demand stays under with probability `level` over (or at) the next `hours`."""
        hour, rank = _places(self.horizons, (hours,), "hour"), _places(self.levels, (level,), "level")
        return (self.maxima if of == "maximum" else self.values).quantiles[:, hour[0], rank[0]]

    def select(self, horizons: Sequence[int] | None, levels: Sequence[float] | None) -> Forecast:
        """Only these hours and levels, all where none are named."""
        hours, ranks = horizons or self.horizons, levels or self.levels
        at = _places(self.horizons, hours, "hour"), _places(self.levels, ranks, "level")
        return Forecast(tuple(hours), tuple(ranks), self.values.at(*at), self.maxima.at(*at))

    def tidied(self, capacity: Floats | float | None) -> Forecast:
        """Within capacity, rising with the level, and maxima that never fall with the hours they span."""
        limit = np.inf if capacity is None else capacity
        values, maxima = self.values.clipped(limit), self.maxima.clipped(limit)
        quantiles = np.maximum.accumulate(np.maximum(maxima.quantiles, values.quantiles), axis=1)
        mean = np.maximum.accumulate(np.maximum(maxima.mean, values.mean), axis=1)
        return Forecast(self.horizons, self.levels, values, DemandDistribution(quantiles, mean, maxima.std))


def _places(known: Sequence[float], wanted: Sequence[float], what: str) -> list[int]:
    missing = [each for each in wanted if each not in known]
    if missing:
        known_text = ", ".join(f"{each:g}" for each in known)
        raise BadInput(
            f"{what} {missing[0]:g} is not forecast (known: {known_text}); name it in the forecaster's Scope"
        )
    return [known.index(each) for each in wanted]


# The recent hours of every series as one array, without gaps from the first hour on -----------------------------------
#
# How it works. Before its first observation a series is backfilled with its first value, and an hour without a report
# repeats the value before: features then need no special cases. `known` tells such hours from observed ones, so that
# nothing is learnt from them.


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
            raise BadInput(f"{found}, expected a finite number of at least 0; leave out hours that were not measured")
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
