"""The default beside persistence on many shapes: level shifts, falling load, bursts, rare use, cycles."""

from __future__ import annotations

import numpy as np
import pytest

from cluster.forecast.demand_shapes import SHAPES, draw
from takeup.cluster.forecast.anchored import AnchoredForecaster, pinball
from takeup.cluster.forecast.baselines import Persistence
from takeup.cluster.forecast.forecaster import Forecaster, Scope
from takeup.core.arrays import Floats

NUM_HOURS, START, SEED = 1500, 672, 1
SCOPE = Scope(levels=(0.5, 0.9))
pytestmark = pytest.mark.xdist_group("shapes of demand")  # one process forecasts them, once


def bounds(model: Forecaster, demand: Floats) -> Floats:
    """The 90 % bound from every origin, `[origin, series, hour]`."""
    said = []
    for hour in range(NUM_HOURS - SCOPE.num_hours):
        model.observe(hour, demand[hour])
        if hour >= START:
            said.append(model.forecast().values.quantiles[:, :, 1])
    return np.stack(said)


@pytest.fixture(scope="module")
def losses() -> dict[str, tuple[float, float, float]]:
    """By shape: pinball of persistence, of the default, and coverage of the default. All shapes share one model."""
    demand = np.hstack([draw(shape, NUM_HOURS, SEED) for shape in SHAPES])
    ahead = range(1, SCOPE.num_hours + 1)
    came = np.stack([demand[START + hours : NUM_HOURS - SCOPE.num_hours + hours] for hours in ahead], axis=2)
    both = [bounds(model, demand) for model in (Persistence(SCOPE), AnchoredForecaster(SCOPE))]
    plain, ours = (pinball(said[..., None], came, np.array([0.9])).mean(axis=(0, 2, 3)) for said in both)
    covered = (came <= both[1]).mean(axis=(0, 2))
    parts = [np.split(each, len(SHAPES)) for each in (plain, ours, covered)]
    return {shape: tuple(float(part[index].mean()) for part in parts) for index, shape in enumerate(SHAPES)}  # type: ignore[misc]


@pytest.mark.parametrize("shape", SHAPES)
def test_the_default_never_loses_to_persistence_by_more_than_a_twentieth(
    losses: dict[str, tuple[float, float, float]], shape: str
) -> None:
    plain, ours, _ = losses[shape]

    assert ours <= 1.05 * plain + 1e-9


@pytest.mark.parametrize("shape", ["weekly_cycle", "weekly_jobs"])
def test_the_default_wins_where_there_is_something_to_learn(
    losses: dict[str, tuple[float, float, float]], shape: str
) -> None:
    plain, ours, _ = losses[shape]

    assert ours < 0.9 * plain


@pytest.mark.parametrize("shape", [shape for shape in SHAPES if shape not in ("constant", "intermittent")])
def test_the_default_keeps_its_promise_on_every_shape(
    losses: dict[str, tuple[float, float, float]], shape: str
) -> None:
    assert losses[shape][2] == pytest.approx(0.9, abs=0.04)
