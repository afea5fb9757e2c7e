"""Anchored change: the current demand, plus a learned change, plus what such hours usually add. The default.

How it works, every hour:

    learn      a shared ridge regression maps recent movement and the hour to the change ahead
    spread     the errors of the last four weeks, weighted towards the same hour, the same kind of day and recent ones
    calibrate  the level read off follows the hits and misses of the past weeks (adaptive conformal inference)
    fall back  persistence is mixed with the learned change for every series and target; the one with the higher loss
               in the last two weeks gets little weight
"""

import numpy as np

from takeup.cluster.forecast.baselines import EIGHT_WEEKS, with_prior
from takeup.cluster.forecast.calibration import AdaptiveLevels, PendingForecasts, ResidualSummary, ResidualWindow
from takeup.cluster.forecast.features import LONGEST_HOURS, DemandFeatures, HourSimilarity, WeekCalendar
from takeup.cluster.forecast.forecaster import Forecast, Forecaster, Scope
from takeup.core.arrays import Floats

# Linear weights learnt day by day: shared by all series, and each series free to differ where its data insist ---------
#
# How it works. Sums of x x' and x y per series forget slowly. Shared weights W solve the ridge problem of all sums
# together; those of a series solve its own problem with deviations from W penalised. Work is spread over the day: each
# hour one twenty-fourth of the series have their turn, add the rows of their last day to their sums and solve.

NUM_TURNS = 24
KEEP_SHARE = 0.9995**NUM_TURNS  # of what was learnt, per day: it fades over 83 days
PENALTY = 10.0
DEVIATION_PENALTY = 300.0


class SharedRidge:
    """Predicts `num_targets` numbers for every row of features."""

    def __init__(self, num_columns: int, num_targets: int) -> None:
        self.num_columns, self.num_targets, self.turn = num_columns, num_targets, 0
        self.rows = np.zeros((0, NUM_TURNS, num_columns))
        self.goals = np.zeros((0, NUM_TURNS, num_targets))
        self.squares = np.zeros((0, num_columns, num_columns))
        self.products = np.zeros((0, num_columns, num_targets))
        self.weights = np.zeros((0, num_columns, num_targets))
        self.shared = np.zeros((num_columns, num_targets))

    def learn(self, features: Floats, outcomes: Floats) -> None:
        """One hour: `features[series, column]`, `outcomes[series, target]`; rows with a NaN teach nothing."""
        whole = np.isfinite(outcomes).all(axis=1, keepdims=True)
        self.rows[:, self.turn], self.goals[:, self.turn] = np.where(whole, features, 0), np.where(whole, outcomes, 0)
        if self.turn == 0:
            squares = self.squares.sum(axis=0) + PENALTY * np.eye(self.num_columns)
            self.shared = np.linalg.solve(squares, self.products.sum(axis=0))
        self._take_turn(slice(self.turn, None, NUM_TURNS))
        self.turn = (self.turn + 1) % NUM_TURNS

    def predict(self, features: Floats) -> Floats:
        """`[series, target]`."""
        return np.asarray((features[:, None, :] @ self.weights)[:, 0])

    def grow(self, num_series: int) -> None:
        """Make room for series that are new; they start with the shared weights."""
        num_new = num_series - len(self.weights)
        if num_new:
            self.rows, self.goals, self.squares, self.products = (
                np.concatenate([each, np.zeros((num_new, *each.shape[1:]))])
                for each in (self.rows, self.goals, self.squares, self.products)
            )
            self.weights = np.concatenate([self.weights, np.repeat(self.shared[None], num_new, axis=0)])

    def _take_turn(self, series: slice) -> None:
        rows = self.rows[series]
        across = rows.transpose(0, 2, 1)
        squares = self.squares[series] = KEEP_SHARE * self.squares[series] + across @ rows
        products = self.products[series] = KEEP_SHARE * self.products[series] + across @ self.goals[series]
        penalised = squares + DEVIATION_PENALTY * np.eye(self.num_columns)
        self.weights[series] = self.shared + np.linalg.solve(penalised, products - squares @ self.shared)


MEMORY_HOURS = 336
SHARPNESS = 20.0  # an expert that loses by a tenth weighs e^-2 of the best


def pinball(quantiles: Floats, outcomes: Floats, levels: Floats) -> Floats:
    """The loss that the true quantile makes smallest; levels along the last axis."""
    above = outcomes[..., None] - quantiles
    return np.asarray(np.maximum(levels * above, (levels - 1.0) * above))


class ExpertMixture:
    """Weights `[series, target, expert]` from pinball losses that are forgotten over two weeks."""

    def __init__(self, num_targets: int, num_experts: int, levels: tuple[float, ...]) -> None:
        self.levels = np.array(levels)
        self.losses = np.zeros((0, num_targets, num_experts))
        self.num_settled = np.zeros((0, num_targets, 1))

    def update(self, quantiles: Floats, outcomes: Floats) -> None:
        """Compare what each expert said, `[series, target, expert, level]`, with what came."""
        loss = pinball(quantiles, np.broadcast_to(outcomes[:, :, None], quantiles.shape[:3]), self.levels).mean(axis=3)
        settled = np.isfinite(loss).all(axis=2, keepdims=True)
        self.num_settled += settled
        rate = settled / np.clip(self.num_settled, 1.0, MEMORY_HOURS)
        self.losses += rate * (np.where(settled, loss, 0.0) - self.losses)

    def weights(self) -> Floats:
        """They sum to one over the experts."""
        best = np.maximum(self.losses.min(axis=2, keepdims=True), 1e-12)
        raw = np.exp(np.maximum(-SHARPNESS * (self.losses / best - 1.0), -700.0))
        return np.asarray(raw / raw.sum(axis=2, keepdims=True))

    def grow(self, num_series: int) -> None:
        num_new = num_series - len(self.losses)
        self.losses = np.concatenate([self.losses, np.zeros((num_new, *self.losses.shape[1:]))])
        self.num_settled = np.concatenate([self.num_settled, np.zeros((num_new, *self.num_settled.shape[1:]))])


EXPERTS = ("persistence", "learned change")
FOUR_WEEKS = 672


class AnchoredForecaster(Forecaster):
    """The current value plus a learned change, calibrated online, with persistence to fall back on."""

    def __init__(
        self, scope: Scope | None = None, calendar: WeekCalendar | None = None, num_window_hours: int = FOUR_WEEKS
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
