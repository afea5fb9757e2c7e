"""How sure a mean ratio is: its 95 % interval, by Student's distribution of the logarithms."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean, stdev

from scipy import stats

LEVEL = 0.95


def geometric_interval(ratios: Sequence[float]) -> tuple[float, float] | None:
    """The interval of the geometric mean; None for fewer than two."""
    if len(ratios) < 2:
        return None
    logs = [math.log(ratio) for ratio in ratios]
    reach = stats.t.ppf((1 + LEVEL) / 2, len(logs) - 1) * stdev(logs) / math.sqrt(len(logs))
    return math.exp(fmean(logs) - reach), math.exp(fmean(logs) + reach)


def in_words(interval: tuple[float, float] | None) -> str:
    """`0.98 to 1.04`, or a dash."""
    return "-" if interval is None else f"{interval[0]:.3f} to {interval[1]:.3f}"
