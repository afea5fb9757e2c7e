"""From organisations to pools: the demand of a pool is the sum of the demands of its organisations.

`moments` adds means and variances, as if organisations were independent and their sum were normal. `quantiles` adds the
bounds themselves: safe under any correlation, and wider. A pool observed as a single series needs neither.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
from scipy.special import ndtri

from takeup.cluster.policies.gfs.forecast.distribution import DemandDistribution, Forecast
from takeup.core.arrays import Floats
from takeup.errors import BadInput

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
