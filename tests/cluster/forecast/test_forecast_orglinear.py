"""OrgLinear: what it needs, and that training learns; the trained part runs where torch is installed."""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.util import find_spec

import numpy as np
import pytest

from support import orglinear
from support.orglinear import OrgLinear
from takeup.cluster.forecast import make_forecaster
from takeup.errors import BadInput, MissingEngine

HAS_TORCH = find_spec("torch") is not None
ATTRIBUTES = [(0, 0, 0), (1, 0, 1)]


def fed(num_hours: int) -> OrgLinear:
    model, rng = OrgLinear(ATTRIBUTES), np.random.default_rng(0)
    for hour in range(num_hours):
        wave = 20.0 * np.sin(2 * np.pi * hour / 24)
        model.observe(hour, np.array([100.0, 60.0]) + wave + rng.normal(0.0, 2.0, 2))
    return model


def test_before_training_the_answer_is_persistence() -> None:
    plain, model = make_forecaster("persistence"), OrgLinear(ATTRIBUTES)
    for each in (plain, model):
        for hour in range(60):
            each.observe(hour, [float(hour % 7), 5.0])

    np.testing.assert_array_equal(model.forecast().values.quantiles, plain.forecast().values.quantiles)


def test_too_little_history_is_refused() -> None:
    with pytest.raises(BadInput, match="trains on at least 844"):
        fed(30).train(seed=0)


def test_every_series_needs_attributes() -> None:
    with pytest.raises(BadInput, match="3 series observed, attributes given for 2"):
        OrgLinear(ATTRIBUTES).observe(0, [1.0, 2.0, 3.0])


def test_without_torch_training_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)

    with pytest.raises(MissingEngine, match=r"takeup\[torch\]"):
        fed(844).train(seed=0)


@pytest.mark.skipif(not HAS_TORCH, reason="needs the package torch")
def test_training_is_the_same_for_the_same_seed_and_goes_on_from_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(orglinear, "NUM_EPOCHS", 2)
    import_module("torch").set_num_threads(1)
    first, second = fed(850), fed(850)

    losses = [first.train(seed=3), second.train(seed=3)]

    assert losses[0] == losses[1]
    np.testing.assert_array_equal(first.forecast().values.quantiles, second.forecast().values.quantiles)
    assert first.train(seed=4) < losses[0]
