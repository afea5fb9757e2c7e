"""Baseline forecasts: persistence, and the peak of the last week (the ablation of the GFS paper)."""

import numpy as np
import numpy.typing as npt
from scipy.special import ndtri

from takeup.cluster.forecast.calibration import ResidualSummary, ResidualWindow
from takeup.cluster.forecast.forecaster import Forecast, Forecaster, Scope
from takeup.core.arrays import Floats

# Persistence: demand stays where it is, give or take what it moved by in the last eight weeks -------------------------
#
# The bar every learned model has to clear: last value plus the empirical quantile of past changes, per series and hour
# ahead.

EIGHT_WEEKS = 1344
NUM_PRIOR_HOURS = 48


class Persistence(Forecaster):
    """Anchor: the last value. Spread: plain quantiles of the changes seen."""

    def __init__(self, scope: Scope | None = None, num_window_hours: int = EIGHT_WEEKS) -> None:
        super().__init__(scope)
        self.changes = ResidualWindow(len(self.targets.leads), num_window_hours)

    def _memory_hours(self) -> int:
        return max(self.changes.num_slots, self.history.num_hours)

    def _learn(self) -> None:
        self.changes.add(self.targets.outcomes(self.history) - self.targets.origins(self.history))

    def _predict(self) -> Forecast:
        now, levels = self.history.values[-1][:, None], np.array(self.scope.levels)
        alike = np.ones(self.changes.order.shape[1:])
        spread = self.changes.weighted(alike, np.broadcast_to(levels, (*self.changes.counts.shape, len(levels))))
        spread = with_prior(spread, self.changes.counts, now, levels)
        return self.targets.forecast(
            self.scope, now[:, :, None] + spread.quantiles, now + spread.mean, np.sqrt(spread.variance)
        )


def with_prior(spread: ResidualSummary, counts: npt.NDArray[np.int64], now: Floats, levels: Floats) -> ResidualSummary:
    """In its first two days a series moves partly by a guess: a normal change of a quarter of its level."""
    if counts.size and counts.min() >= NUM_PRIOR_HOURS:
        return spread
    seen = np.minimum(counts / NUM_PRIOR_HOURS, 1.0)
    guess = np.broadcast_to(np.maximum(now / 4.0, 1.0), counts.shape)
    quantiles = seen[:, :, None] * spread.quantiles + ((1 - seen) * guess)[:, :, None] * ndtri(levels)
    return ResidualSummary(quantiles, seen * spread.mean, seen * spread.variance + (1 - seen) * guess**2)


HOURS_A_WEEK = 168


class LastWeekPeak(Forecaster):
    """One number for every hour and level, and no spread."""

    def __init__(self, scope: Scope | None = None) -> None:
        super().__init__(scope, num_hours_kept=HOURS_A_WEEK)

    def _predict(self) -> Forecast:
        peak = self.history.values.max(axis=0)[:, None]
        mean = np.repeat(peak, len(self.targets.leads), axis=1)
        quantiles = np.repeat(mean[:, :, None], len(self.scope.levels), axis=2)
        return self.targets.forecast(self.scope, quantiles, mean, np.zeros_like(mean))
