"""Last week's peak: reserve the highest demand of the past 168 hours, the ablation of the GFS paper."""

from __future__ import annotations

import numpy as np

from takeup.cluster.policies.gfs.forecast.distribution import Forecast, Scope
from takeup.cluster.policies.gfs.forecast.forecaster import Forecaster

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
