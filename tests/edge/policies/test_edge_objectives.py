"""Objectives: what policies pursue is set by the values of tasks."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings

from edge.cells import instances, two_devices
from edge.plain_energy import plain_best_saving
from takeup.edge.model import Instance, with_objective
from takeup.edge.policies import find_policy
from takeup.edge.traces.generators import paper_setting
from takeup.edge.validate import violation_of_answer
from takeup.errors import UnknownName


def test_energy_is_the_plain_aim() -> None:
    instance = replace(two_devices(), values_j=np.array([1.0, 2.0]))

    assert with_objective(instance, "energy").values_j.tolist() == [0.0, 0.0]
    assert with_objective(instance, "value") is instance


def test_one_more_device_outweighs_all_energy() -> None:
    instance = with_objective(two_devices(), "count")
    uploads_j = (0.1 + 10.0) * 4.0

    assert instance.values_j.tolist() == pytest.approx([32.0 + 4.0 + 2 * uploads_j] * 2)


@pytest.mark.parametrize("seed", range(6))
def test_more_devices_are_served_by_count_than_by_energy_at_most_at_the_cost_of_energy(seed: int) -> None:
    plain = paper_setting(np.random.default_rng(seed), 3, 2)
    by_count = find_policy("exact").allocate(with_objective(plain, "count"))
    by_energy = find_policy("exact").allocate(plain)

    assert by_count.allocation.num_accepted >= by_energy.allocation.num_accepted
    assert by_count.saving_j <= plain_best_saving(plain) * (1 + 1e-9)


@given(instance=instances())
@settings(max_examples=15, deadline=None)
def test_plans_by_count_keep_every_constraint(instance: Instance) -> None:
    counted = with_objective(instance, "count")
    answer = find_policy("greedy").allocate(counted)

    assert violation_of_answer(counted, answer) is None


def test_an_unknown_objective_is_refused() -> None:
    with pytest.raises(UnknownName, match="did you mean 'energy'"):
        with_objective(two_devices(), "enregy")
