"""Bounds: never below the best plan, for one problem or for very many devices, and prices that make sense."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings

from edge.cells import instances, two_devices
from takeup.edge.model import Instance, Prices
from takeup.edge.policies.exact import Exact
from takeup.edge.solvers import bounds as priced
from takeup.edge.solvers.bounds import (
    choice_constraints,
    price,
    quantile_moments,
    saving_limits,
    size_choices,
)
from takeup.edge.traces.generators import paper_setting, radio_tight_setting


@given(instance=instances(most_devices=7, most_subcarriers=4))
@settings(max_examples=30, deadline=None)
def test_no_bound_is_below_the_best_plan(instance: Instance) -> None:
    best_j = Exact().allocate(instance).worth_j * (1 - 1e-6)

    assert price(instance).bound_j >= best_j


def test_devices_that_are_left_out_of_the_program_still_count(monkeypatch: pytest.MonkeyPatch) -> None:
    instance = paper_setting(np.random.default_rng(1), 40)
    whole_j = price(instance).bound_j
    monkeypatch.setattr(priced, "MOST_PRICED", 40)
    partly_j = price(instance).bound_j

    assert whole_j * (1 - 1e-9) <= partly_j < 1.5 * whole_j


@given(instance=instances(most_devices=8))
@settings(max_examples=30, deadline=None)
def test_nobody_adds_more_than_its_reach(instance: Instance) -> None:
    choices = size_choices(instance, np.arange(instance.num_devices))

    assert (choices.value_j <= saving_limits(instance)[choices.device] * (1 + 1e-9)).all()


def test_a_scarce_core_has_a_price_and_a_plentiful_one_has_none() -> None:
    scarce = radio_tight_setting(np.random.default_rng(2), 20, 16, 1e9)
    plentiful = replace(scarce, edge_hz=1e12)

    assert price(scarce).prices.core_j > 0
    assert price(plentiful).prices.core_j == pytest.approx(0.0, abs=1e-9)
    assert price(plentiful).prices.subcarrier_j > 0


def test_nothing_to_save_is_worth_nothing() -> None:
    instance = replace(two_devices(), chip_constant=1e-9)

    assert price(instance) == (0.0, Prices(0.0, 0.0))


def test_the_rules_are_about_devices_subcarriers_and_cpu_time() -> None:
    instance = replace(two_devices(), edge_hz=2.0)  # 4 s and 2 s of CPU time until 4 s
    choices = size_choices(instance, np.arange(2))
    rules = choice_constraints(instance, choices, quantile_moments(choices))

    assert choices.device.tolist() == [1, 1]  # the first would have no time to upload
    assert choices.size.tolist() == [1, 2]
    assert rules.num_devices == 1
    assert rules.rows.toarray()[1].tolist() == [0.5, 1.0]


def test_rows_about_cpu_time_are_few_however_many_deadlines_there_are() -> None:
    instance = paper_setting(np.random.default_rng(0), 2_000, 2)
    choices = size_choices(instance, np.arange(2_000))
    rules = choice_constraints(instance, choices, quantile_moments(choices))

    assert rules.rows.shape[0] == 2_000 + 1 + len(rules.spans_s)
    assert 0 < len(rules.spans_s) <= 4 * 60
