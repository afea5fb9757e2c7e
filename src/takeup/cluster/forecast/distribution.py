"""A forecast: quantiles of demand at each of the next hours and of its maximum up to each, and sums over pools."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from scipy.special import ndtri

from takeup.core.arrays import Floats
from takeup.errors import BadInput

# What a forecast says: quantiles of demand at each of the next hours, and of its maximum up to each of them -----------


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


# From organisations to pools: the demand of a pool is the sum of the demands of its organisations ---------------------
#
# `moments` adds means and variances, as if organisations were independent and their sum were normal. `quantiles` adds
# the
# bounds themselves: safe under any correlation, and wider. A pool observed as a single series needs neither.

Rule = Literal["moments", "quantiles"]


def sum_over_pools(
    forecast: Forecast, pools: Sequence[int], rule: Rule = "moments", capacity: Floats | float | None = None
) -> Forecast:
    """The forecast of pools 0, 1, ...; `pools` names the pool of each series."""
    if len(pools) != len(forecast.values.mean) or min(pools, default=0) < 0:
        found = f"{len(pools)} pools named for {len(forecast.values.mean)} series"
        raise BadInput(f"{found}; name one pool, counted from 0, for each series")
    member = (np.arange(max(pools, default=-1) + 1)[:, None] == np.array(pools)).astype(np.float64)
    levels = np.array(forecast.levels)
    values, maxima = (_sum(member, spread, levels, rule) for spread in (forecast.values, forecast.maxima))
    return Forecast(forecast.horizons, forecast.levels, values, maxima).tidied(capacity)


def _sum(member: Floats, spread: DemandDistribution, levels: Floats, rule: Rule) -> DemandDistribution:
    mean, std = member @ spread.mean, np.sqrt(member @ spread.std**2)
    if rule == "moments":
        return DemandDistribution(mean[:, :, None] + std[:, :, None] * ndtri(levels), mean, std)
    return DemandDistribution(np.einsum("ps,shl->phl", member, spread.quantiles), mean, std)
