"""Anchored change: the current demand, plus a learned change, plus what such hours usually add. The default.

How it works, every hour:

    learn      a shared ridge regression maps recent movement and the hour to the change ahead
    spread     the errors of the last four weeks, weighted towards the same hour, the same kind of day and recent ones
    calibrate  the level read off follows the hits and misses of the past weeks (adaptive conformal inference)
    fall back  persistence is mixed with the learned change for every series and target; the one with the higher loss
               in the last two weeks gets little weight
"""

from __future__ import annotations

import numpy as np

from takeup.cluster.policies.gfs.forecast.calendar import Calendar, WeekCalendar
from takeup.cluster.policies.gfs.forecast.conformal import AdaptiveLevels
from takeup.cluster.policies.gfs.forecast.distribution import Forecast, Scope
from takeup.cluster.policies.gfs.forecast.features import LONGEST_HOURS, DemandFeatures
from takeup.cluster.policies.gfs.forecast.forecaster import Forecaster
from takeup.cluster.policies.gfs.forecast.likeness import HourSimilarity
from takeup.cluster.policies.gfs.forecast.mixture import ExpertMixture
from takeup.cluster.policies.gfs.forecast.pending import PendingForecasts
from takeup.cluster.policies.gfs.forecast.persistence import EIGHT_WEEKS, with_prior
from takeup.cluster.policies.gfs.forecast.residuals import ResidualSummary, ResidualWindow
from takeup.cluster.policies.gfs.forecast.ridge import SharedRidge
from takeup.core.arrays import Floats

EXPERTS = ("persistence", "learned change")
FOUR_WEEKS = 672


class AnchoredForecaster(Forecaster):
    """The current value plus a learned change, calibrated online, with persistence to fall back on."""

    def __init__(
        self, scope: Scope | None = None, calendar: Calendar | None = None, num_window_hours: int = FOUR_WEEKS
    ) -> None:
        super().__init__(scope, num_hours_kept=LONGEST_HOURS)
        num_hours, num_targets, num_levels = self.scope.num_hours, len(self.targets.leads), len(self.scope.levels)
        self.features = DemandFeatures(num_hours)
        self.ridge = SharedRidge(self.features.num_columns, num_targets)
        self.changes = ResidualWindow(num_targets, EIGHT_WEEKS)
        self.errors = ResidualWindow(num_targets, num_window_hours)
        self.likeness = HourSimilarity(calendar or WeekCalendar(), num_window_hours)
        self.levels = AdaptiveLevels(num_targets, self.scope.levels)
        self.mixture = ExpertMixture(num_targets, len(EXPERTS), self.scope.levels)
        self.said_features = PendingForecasts(num_hours, self.features.num_columns)
        self.said_units = PendingForecasts(num_hours, 1)
        self.said_changes = PendingForecasts(num_hours, num_targets)
        self.said_experts = PendingForecasts(num_hours, num_targets, len(EXPERTS), num_levels)
        self.said = PendingForecasts(num_hours, num_targets, num_levels)
        self.answer = ResidualSummary(np.zeros(0), np.zeros(0), np.zeros(0))

    def _memory_hours(self) -> int:
        return max(self.changes.num_slots, self.history.num_hours)

    def _predict(self) -> Forecast:
        return self.targets.forecast(self.scope, self.answer.quantiles, self.answer.mean, np.sqrt(self.answer.variance))

    def _learn(self) -> None:
        self._grow(self.history.num_series)
        self._settle()
        self._teach()
        self._speak()

    def _grow(self, num_series: int) -> None:
        pending = (self.said_features, self.said_units, self.said_changes, self.said_experts, self.said)
        for each in (self.ridge, self.levels, self.mixture, *pending):
            each.grow(num_series)

    def _settle(self) -> None:
        """Score what was forecast for the latest hour against its outcome."""
        leads, outcomes = self.targets.leads, self.targets.outcomes(self.history)
        change = outcomes - self.targets.origins(self.history)
        self.changes.add(change)
        self.errors.add(change - self.said_changes.due(leads))
        self.likeness.add(self.history.hour or 0)
        self.mixture.update(self.said_experts.due(leads), outcomes)
        self.levels.update(self.said.due(leads), outcomes)

    def _teach(self) -> None:
        """Fit the regression on the oldest origin, whose hours are all over now."""
        unit = np.maximum(self.said_units.oldest(), self.features.least_unit)
        change = np.clip(self.targets.changes(self.history) / unit, -self.features.largest, self.features.largest)
        self.ridge.learn(self.said_features.oldest(), change)
        self.features.update(self.history)

    def _speak(self) -> None:
        features, unit = self.features.matrix(self.history), self.features.unit()[:, None]
        change = self.ridge.predict(features) * self.features.scale[:, None]
        learned = self._learned(change)
        experts = np.stack([self._persistence(), learned.quantiles], axis=2)
        quantiles = (self.mixture.weights()[:, :, :, None] * experts).sum(axis=2)
        self.answer = ResidualSummary(quantiles, learned.mean, learned.variance)
        said = (features, unit, change, experts, quantiles)
        pending = (self.said_features, self.said_units, self.said_changes, self.said_experts, self.said)
        for each, row in zip(pending, said, strict=True):
            each.add(row)

    def _persistence(self) -> Floats:
        """Quantiles of the plain model at calibrated levels."""
        now, counts = self.history.values[-1][:, None], self.changes.counts
        nothing = np.zeros(counts.shape)
        spread = ResidualSummary(self.changes.plain(self.levels.levels()), nothing, nothing)
        return np.asarray(now[:, :, None] + with_prior(spread, counts, now, self.levels.promised).quantiles)

    def _learned(self, change: Floats) -> ResidualSummary:
        now = self.history.values[-1][:, None]
        weights = self.likeness.weights(self.history.hour or 0, self.targets.leads)
        spread = self.errors.weighted(weights, self.levels.levels())
        spread = with_prior(spread, self.errors.counts, now, self.levels.promised)
        centre = now + change
        return ResidualSummary(centre[:, :, None] + spread.quantiles, centre + spread.mean, spread.variance)
