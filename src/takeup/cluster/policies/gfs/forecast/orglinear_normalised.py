"""OrgLinear anchored on the present: the paper's linear map of four weeks, learnt on normalised windows in closed form.

Each window is shifted by its last value and divided by the deviation of its last week, so that weights transfer between
organisations and levels. One matrix for all series, ridge instead of gradient descent; normal errors, in window units.
"""

from __future__ import annotations

import numpy as np
from scipy.special import ndtri

from takeup.cluster.policies.gfs.forecast.calendar import Calendar, WeekCalendar
from takeup.cluster.policies.gfs.forecast.distribution import Forecast, Scope
from takeup.cluster.policies.gfs.forecast.forecaster import Forecaster
from takeup.cluster.policies.gfs.forecast.pending import PendingForecasts
from takeup.core.arrays import Floats

NUM_WINDOW_HOURS = 672
HOURS_A_WEEK, HOURS_A_DAY = 168, 24
PENALTY = 5000.0
LARGEST = 10.0
FIRST_GUESS = 1.0  # variance of the change in window units before anything was seen
NUM_GUESSED = 48.0
MEMORY_ROWS = 2000.0


class NormalisedOrgLinear(Forecaster):
    """Normal predictions around a shared linear map, fitted again every day."""

    def __init__(self, scope: Scope | None = None, calendar: Calendar | None = None) -> None:
        super().__init__(scope, num_hours_kept=NUM_WINDOW_HOURS)
        num_columns, num_targets = NUM_WINDOW_HOURS + HOURS_A_DAY + 1, len(self.targets.leads)
        self.calendar = calendar or WeekCalendar()
        self.squares, self.products = np.zeros((num_columns, num_columns)), np.zeros((num_columns, num_targets))
        self.weights: Floats = np.zeros((num_columns, num_targets))
        self.said_rows = PendingForecasts(self.scope.num_hours, num_columns)
        self.said_units = PendingForecasts(self.scope.num_hours, 1)
        self.day: list[tuple[Floats, Floats]] = []
        self.variance, self.num_rows = np.full(num_targets, FIRST_GUESS), NUM_GUESSED

    def _learn(self) -> None:
        for pending in (self.said_rows, self.said_units):
            pending.grow(self.history.num_series)
        change = self.targets.changes(self.history) / self.said_units.oldest()
        whole = np.isfinite(change).all(axis=1)
        self._take(self.said_rows.oldest()[whole], np.clip(change[whole], -LARGEST, LARGEST))
        rows, unit = self._rows()
        self.said_rows.add(rows)
        self.said_units.add(unit)

    def _take(self, rows: Floats, change: Floats) -> None:
        """Count the errors of these rows and keep them; once a day fit again."""
        if len(rows):
            self.num_rows = min(self.num_rows + len(rows), MEMORY_ROWS)
            error = np.square(change - rows @ self.weights).mean(axis=0)
            self.variance += len(rows) / self.num_rows * (error - self.variance)
            self.day.append((rows, change))
        if len(self.day) == HOURS_A_DAY:
            today, changes = (np.concatenate(part) for part in zip(*self.day, strict=True))
            self.squares += today.T @ today
            self.products += today.T @ changes
            penalised = self.squares + PENALTY * np.eye(len(self.squares))
            self.weights = np.asarray(np.linalg.solve(penalised, self.products), dtype=np.float64)
            self.day.clear()

    def _rows(self) -> tuple[Floats, Floats]:
        """Inputs `[series, column]` and the unit of each window."""
        values, hour = self.history.values, self.history.hour or 0
        unit = np.maximum(values[-HOURS_A_WEEK:].std(axis=0), 1e-6)
        window = np.clip((values - values[-1]) / unit, -LARGEST, LARGEST).T
        moment = np.zeros((len(window), HOURS_A_DAY + 1))
        moment[:, hour % HOURS_A_DAY] = 1.0
        moment[:, -1] = self.calendar.day_kind(hour)
        return np.hstack([window, moment]), unit[:, None]

    def _predict(self) -> Forecast:
        rows, unit = self._rows()
        mean = self.history.values[-1][:, None] + unit * (rows @ self.weights)
        std = unit * np.sqrt(self.variance)
        quantiles = mean[:, :, None] + std[:, :, None] * ndtri(np.array(self.scope.levels))
        return self.targets.forecast(self.scope, quantiles, mean, std)
