"""Summaries of measurements, and the significance of a difference between two runs.

Every function refuses what it cannot answer (no values, nan, infinity) instead of answering nan.
"""

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from numpy.random import Generator
from scipy import stats

from takeup.core.arrays import Floats
from takeup.errors import BadInput

MOST_NUMBERS_AT_ONCE = 4_000_000  # resamples held in memory together: 32 MB


@dataclass(frozen=True, slots=True)
class Summary:
    """Count, mean, percentiles and maximum of values."""

    count: int
    mean: float
    p50: float
    p90: float
    p99: float
    max: float


@dataclass(frozen=True, slots=True)
class Interval:
    """Where the true value lies with confidence `level`."""

    low: float
    high: float
    level: float


@dataclass(frozen=True, slots=True)
class PairedComparison:
    """Our values compared with a baseline on the same cases; `ratio` is None where the baseline's mean is zero."""

    mean_difference: float
    difference: Interval
    ratio: float | None
    num_wins: int
    num_ties: int
    num_losses: int
    p_value: float


def summarise(values: npt.ArrayLike) -> Summary:
    """Count, mean, percentiles and maximum."""
    array = _finite(values, "values")
    p50, p90, p99 = np.percentile(array, (50, 90, 99)).tolist()
    return Summary(array.size, float(array.mean()), p50, p90, p99, float(array.max()))


def percentile(values: npt.ArrayLike, percent: float) -> float:
    """The value that `percent` per cent of the values do not exceed, interpolated between neighbours."""
    if not 0 <= percent <= 100:
        raise BadInput(f"there is no percentile {percent}; expected 0 to 100")
    return float(np.percentile(_finite(values, "values"), percent))


def time_weighted_mean(times_s: npt.ArrayLike, values: npt.ArrayLike, until_s: float) -> float:
    """The mean over time of what is `values[i]` from `times_s[i]` on; what changes after `until_s` does not count."""
    times, levels = _finite(times_s, "times"), _finite(values, "values")
    _require_equal_lengths(times, levels, "times", "values")
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
    options = {"n_resamples": num_resamples, "batch": _batch_size(array), "confidence_level": level}
    with warnings.catch_warnings(action="ignore", category=stats.DegenerateDataWarning):
        # Percentile and not BCa, which has no answer for equal values and takes time quadratic in their number.
        found = stats.bootstrap((array,), statistic, **options, method="percentile", random_state=rng)
    low, high = (float(end) for end in found.confidence_interval)
    if not np.isfinite([low, high]).all():
        raise BadInput("the statistic is not a finite number for some resamples of the values; choose another")
    return Interval(low, high, level)


def compare_paired(
    ours: npt.ArrayLike, baseline: npt.ArrayLike, rng: Generator, *, better: Literal["lower", "higher"] = "lower"
) -> PairedComparison:
    """Compare case by case; the p-value is of the sign-flip permutation test of the mean difference, two-sided."""
    first, second = _finite(ours, "ours", at_least=2), _finite(baseline, "baseline", at_least=2)
    _require_equal_lengths(first, second, "ours", "baseline")
    differences = first - second
    num_lower, num_higher = int((differences < 0).sum()), int((differences > 0).sum())
    num_wins, num_losses = (num_lower, num_higher) if better == "lower" else (num_higher, num_lower)
    return PairedComparison(
        mean_difference=float(differences.mean()),
        difference=bootstrap_interval(differences, rng=rng),
        ratio=float(first.mean() / second.mean()) if second.mean() != 0 else None,
        num_wins=num_wins,
        num_ties=differences.size - num_wins - num_losses,
        num_losses=num_losses,
        p_value=_sign_flip_p_value(differences, rng),
    )


def _sign_flip_p_value(differences: Floats, rng: Generator) -> float:
    """How often chance alone, flipping the sign of each difference, makes a mean this far from zero."""
    found = stats.permutation_test(
        (differences,), np.mean, permutation_type="samples", batch=_batch_size(differences), random_state=rng
    )
    return float(found.pvalue)


def _batch_size(array: Floats) -> int:
    return max(1, MOST_NUMBERS_AT_ONCE // array.size)


def _finite(values: npt.ArrayLike, name: str, at_least: int = 1) -> Floats:
    array = np.asarray(values, dtype=np.float64)
    if array.ndim != 1 or array.size < at_least:
        raise BadInput(f"{name}: found an array of shape {array.shape}, expected a list of at least {at_least}")
    if not np.isfinite(array).all():
        place = int(np.argmin(np.isfinite(array)))
        raise BadInput(f"{name}: number {place + 1} of {array.size} is {array[place]}; leave out what was not measured")
    return array


def _require_equal_lengths(first: Floats, second: Floats, first_name: str, second_name: str) -> None:
    if first.size != second.size:
        raise BadInput(f"found {first.size} {first_name} and {second.size} {second_name}; expected one for each")
