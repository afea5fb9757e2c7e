"""The parts of the default model, each against its definition."""

from __future__ import annotations

import numpy as np
import pytest

from takeup.cluster.forecast.anchored import DEVIATION_PENALTY, NUM_TURNS, PENALTY, ExpertMixture, SharedRidge, pinball
from takeup.cluster.forecast.baselines import with_prior
from takeup.cluster.forecast.calibration import AdaptiveLevels, PendingForecasts, ResidualSummary
from takeup.cluster.forecast.features import DemandFeatures, HourSimilarity, WeekCalendar
from takeup.cluster.forecast.forecaster import DemandHistory

# The first two days --------------------------------------------------------------------------------------------------


def of_one_series(counts: list[int], now: float) -> ResidualSummary:
    num = len(counts)
    spread = ResidualSummary(np.full((1, num, 2), 3.0), np.full((1, num), 6.0), np.full((1, num), 10.0))
    return with_prior(spread, np.array([counts]), np.array([[now]]), np.array([0.5, 0.9]))


def test_in_its_first_two_days_a_series_moves_partly_by_a_quarter_of_its_level() -> None:
    found, tail = of_one_series([24, 48, 480], 8.0), 1.2815515655446004

    assert found.quantiles[0, 0].tolist() == pytest.approx([0.5 * 3.0, 0.5 * 3.0 + 0.5 * 2.0 * tail])
    assert found.quantiles[0, 1:].tolist() == [[3.0, 3.0], [3.0, 3.0]]
    assert found.mean[0].tolist() == [3.0, 6.0, 6.0]
    assert found.variance[0].tolist() == [0.5 * 10.0 + 0.5 * 2.0**2, 10.0, 10.0]


def test_a_series_near_zero_moves_by_one_gpu_at_first() -> None:
    assert of_one_series([0], 1.0).variance.tolist() == [[1.0]]
    assert of_one_series([48], 1.0).variance.tolist() == [[10.0]]


# Conformal levels -----------------------------------------------------------------------------------------------------


def adapted(outcome: float, num_hours: int) -> AdaptiveLevels:
    levels = AdaptiveLevels(num_targets=1, promised=(0.5, 0.9))
    levels.grow(1)
    for _ in range(num_hours):
        levels.update(np.full((1, 1, 2), 10.0), np.array([[outcome]]))
    return levels


def test_a_miss_raises_the_level_nine_times_as_much_as_a_hit_lowers_it() -> None:
    raised, lowered = adapted(11.0, 1).levels()[0, 0, 1], adapted(10.0, 1).levels()[0, 0, 1]

    assert raised - 0.9 == pytest.approx(9 * (0.9 - lowered))
    assert raised > 0.9


def test_levels_stay_within_bounds_after_any_spell() -> None:
    assert adapted(11.0, 800).levels()[0, 0].tolist() == pytest.approx([0.95, 0.99])
    assert adapted(9.0, 2000).levels()[0, 0].tolist() == pytest.approx([0.25, 0.45])


def test_an_hour_without_outcome_or_statement_moves_nothing() -> None:
    levels = adapted(float("nan"), 5)
    levels.update(np.full((1, 1, 2), np.nan), np.array([[3.0]]))

    assert levels.levels()[0, 0].tolist() == [0.5, 0.9]


# Mixture --------------------------------------------------------------------------------------------------------------


def test_pinball_charges_misses_by_the_level() -> None:
    loss = pinball(np.array([[10.0, 10.0]]), np.array([14.0]), np.array([0.5, 0.9]))

    assert loss.tolist() == [[2.0, pytest.approx(3.6)]]


def test_an_expert_that_keeps_losing_is_not_heard() -> None:
    mixture = ExpertMixture(num_targets=1, num_experts=2, levels=(0.5,))
    mixture.grow(1)
    assert mixture.weights()[0, 0].tolist() == [0.5, 0.5]
    for _ in range(50):
        mixture.update(np.array([10.0, 14.0]).reshape(1, 1, 2, 1), np.array([[11.0]]))

    assert mixture.weights()[0, 0].tolist() == [pytest.approx(1.0), pytest.approx(0.0)]


def test_old_losses_are_forgotten() -> None:
    mixture = ExpertMixture(num_targets=1, num_experts=2, levels=(0.5,))
    mixture.grow(1)
    said = np.array([10.0, 12.0]).reshape(1, 1, 2, 1)
    for outcome in [10.0] * 400 + [12.0] * 800:
        mixture.update(said, np.array([[outcome]]))

    assert mixture.weights()[0, 0, 1] > 0.99


# Likeness -------------------------------------------------------------------------------------------------------------


def test_hours_alike_weigh_most() -> None:
    likeness = HourSimilarity(WeekCalendar(), num_slots=336)
    for hour in range(336):  # slot = hour; two weeks from a Monday
        likeness.add(hour)

    weights = likeness.weights(335, np.array([10]))[0]  # speaks of hour 345, a Monday at nine

    by_hour = dict(enumerate(weights))
    assert max(by_hour, key=by_hour.__getitem__) == 11 * 24 + 9  # the last Friday at nine
    assert by_hour[13 * 24 + 9] < by_hour[11 * 24 + 9]  # Sunday is another kind of day
    assert by_hour[4 * 24 + 9] < by_hour[11 * 24 + 9]  # a week older
    assert by_hour[11 * 24 + 20] < 0.1 * by_hour[11 * 24 + 9]


# Pending --------------------------------------------------------------------------------------------------------------


def test_each_target_finds_what_was_said_its_lead_ago() -> None:
    pending = PendingForecasts(3, 2)
    pending.grow(1)
    for hour in range(5):
        pending.add(np.array([[hour, 10.0 * hour]]))

    assert pending.due(np.array([1, 3])).tolist() == [[4.0, 20.0]]
    assert pending.oldest().tolist() == [[2.0, 20.0]]


def test_nothing_is_due_for_a_series_that_has_just_come() -> None:
    pending = PendingForecasts(2, 1)
    pending.grow(1)
    pending.add(np.array([[1.0]]))
    pending.grow(2)

    assert pending.due(np.array([1]))[0].tolist() == [1.0]
    assert np.isnan(pending.due(np.array([1]))[1]).all()


# Regression -----------------------------------------------------------------------------------------------------------


def test_weights_of_one_day_solve_the_two_ridge_problems() -> None:
    rng, ridge = np.random.default_rng(1), SharedRidge(num_columns=3, num_targets=2)
    ridge.grow(1)
    rows, goals = rng.normal(size=(NUM_TURNS + 1, 3)), rng.normal(size=(NUM_TURNS + 1, 2))
    for row, goal in zip(rows, goals, strict=True):
        ridge.learn(row[None], goal[None])

    first, last = rows[:1], rows[1:]  # a first turn after one hour, a second after the day that follows
    shared = np.linalg.solve(first.T @ first + PENALTY * np.eye(3), first.T @ goals[:1])
    keep = 0.9995**24
    squares = keep * first.T @ first + last.T @ last
    products = keep * first.T @ goals[:1] + last.T @ goals[1:]
    own = shared + np.linalg.solve(squares + DEVIATION_PENALTY * np.eye(3), products - squares @ shared)
    np.testing.assert_allclose(ridge.weights[0], own)
    np.testing.assert_allclose(ridge.predict(rows[:1]), rows[:1] @ own)


def test_a_linear_law_shared_by_all_series_is_found() -> None:
    rng, ridge = np.random.default_rng(2), SharedRidge(num_columns=2, num_targets=1)
    ridge.grow(30)
    law = np.array([[1.0], [-2.0]])
    for _ in range(200):
        rows = rng.normal(size=(30, 2))
        ridge.learn(rows, rows @ law)

    np.testing.assert_allclose(ridge.shared, law, atol=0.02)


def test_rows_without_outcome_teach_nothing() -> None:
    ridge = SharedRidge(num_columns=2, num_targets=1)
    ridge.grow(1)
    for _ in range(50):
        ridge.learn(np.full((1, 2), np.nan), np.full((1, 1), np.nan))

    assert not ridge.weights.any()


# Features -------------------------------------------------------------------------------------------------------------


def features_of(values: list[float]) -> tuple[DemandFeatures, DemandHistory]:
    features, history = DemandFeatures(num_hours=2), DemandHistory(672)
    for hour, value in enumerate(values):
        history.append(hour, np.array([value]))
        features.update(history)
    return features, history


def test_features_do_not_change_with_level_or_size() -> None:
    values = np.random.default_rng(3).integers(50, 90, 200).astype(float)
    plain, history = features_of(list(values))
    moved, moved_history = features_of(list(7.0 * values + 1000.0))

    np.testing.assert_allclose(plain.matrix(history), moved.matrix(moved_history))


def test_the_hour_of_the_day_has_one_column() -> None:
    features, history = features_of([1.0] * 31)

    row = features.matrix(history)[0]

    assert len(row) == features.num_columns
    assert not row[:-25].any()
    assert np.flatnonzero(row[-25:]).tolist() == [0, 1 + 30 % 24]


def test_the_scale_is_the_mean_absolute_change() -> None:
    features, _ = features_of([1.0, 3.0, 3.0, 7.0])

    assert features.unit().tolist() == [pytest.approx((2 + 0 + 4) / 3)]
