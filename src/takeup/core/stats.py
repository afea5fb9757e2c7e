"""Percentiles, means over time and bootstrap intervals of measurements.

Every function refuses what it cannot answer (no values, nan, infinity) instead of answering nan.
"""

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from numpy.random import Generator
from scipy import stats

from takeup.core.arrays import Floats
from takeup.errors import BadInput

MOST_NUMBERS_AT_ONCE = 4_000_000  # resamples held in memory together: 32 MB


@dataclass(frozen=True, slots=True)
class Interval:
    """Where the true value lies with confidence `level`."""

    low: float
    high: float
    level: float


def percentile(values: npt.ArrayLike, percent: float) -> float:
    """The value that `percent` per cent of the values do not exceed, interpolated between neighbours."""
    if not 0 <= percent <= 100:
        raise BadInput(f"there is no percentile {percent}; expected 0 to 100")
    return float(np.percentile(_finite(values, "values"), percent))


def time_weighted_mean(times_s: npt.ArrayLike, values: npt.ArrayLike, until_s: float) -> float:
    """The mean over time of what is `values[i]` from `times_s[i]` on; what changes after `until_s` does not count."""
    times, levels = _finite(times_s, "times"), _finite(values, "values")
    if times.size != levels.size:
        raise BadInput(f"found {times.size} times and {levels.size} values; expected one for each")
    if (np.diff(times) < 0).any():
        raise BadInput("times go backwards; sort the changes by time")
    if not times[0] < until_s < np.inf:
        raise BadInput(f"no time to average between {times[0]} s and {until_s} s; give an end after the first time")
    durations_s = np.diff(np.minimum(np.append(times, until_s), until_s))
    return float(np.average(levels, weights=durations_s))


def bootstrap_interval(
    values: npt.ArrayLike,
    *,
    rng: Generator,
    statistic: Callable[..., Any] = np.mean,
    level: float = 0.95,
    num_resamples: int = 2000,
) -> Interval:
    """The percentile bootstrap interval of a statistic of the values."""
    if not 0 < level < 1:
        raise BadInput(f"a confidence level of {level} does not exist; expected a share between 0 and 1, such as 0.95")
    array = _finite(values, "values", at_least=2)
    batch = max(1, MOST_NUMBERS_AT_ONCE // array.size)
    options = {"n_resamples": num_resamples, "batch": batch, "confidence_level": level}
    with warnings.catch_warnings(action="ignore", category=stats.DegenerateDataWarning):
        # Percentile and not BCa, which has no answer for equal values and takes time quadratic in their number.
        found = stats.bootstrap((array,), statistic, **options, method="percentile", random_state=rng)
    low, high = (float(end) for end in found.confidence_interval)
    if not np.isfinite([low, high]).all():
        raise BadInput("the statistic is not a finite number for some resamples of the values; choose another")
    return Interval(low, high, level)


def _finite(values: npt.ArrayLike, name: str, at_least: int = 1) -> Floats:
    array = np.asarray(values, dtype=np.float64)
    if array.ndim != 1 or array.size < at_least:
        raise BadInput(f"{name}: found an array of shape {array.shape}, expected a list of at least {at_least}")
    if not np.isfinite(array).all():
        place = int(np.argmin(np.isfinite(array)))
        raise BadInput(f"{name}: number {place + 1} of {array.size} is {array[place]}; leave out what was not measured")
    return array
