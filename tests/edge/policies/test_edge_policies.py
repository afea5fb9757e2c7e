"""Every policy: checked by the validator, never better than brute force, and the same for the same instance."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edge.cells import instances, two_devices
from edge.plain_energy import plain_best_saving
from takeup.edge.model import Instance, Reason
from takeup.edge.policies import POLICIES, find_policy
from takeup.edge.solvers.partial_plan import PartialPlan, SiteQuantities, assign_free_subcarriers
from takeup.edge.traces.generators import paper_setting, radio_tight_setting
from takeup.edge.validate import violation_of_answer
from takeup.errors import UnknownName


def tiny(seed: int, is_paper: bool) -> Instance:
    random = np.random.default_rng(seed)
    return paper_setting(random, 3, 2) if is_paper else radio_tight_setting(random, 3, 2, 2e9)


@pytest.mark.parametrize("name", POLICIES)
@given(instance=instances())
@settings(max_examples=25, deadline=None)
def test_every_answer_keeps_every_constraint(name: str, instance: Instance) -> None:
    answer = find_policy(name).allocate(instance)

    assert violation_of_answer(instance, answer) is None
    assert answer.policy == name
    assert answer.bound_j is not None
    assert 0 <= answer.worth_j <= answer.bound_j


@given(seed=st.integers(0, 1000), is_paper=st.booleans())
@settings(max_examples=8, deadline=None)
def test_nothing_beats_brute_force_and_no_bound_is_below_it(seed: int, is_paper: bool) -> None:
    instance = tiny(seed, is_paper)
    best_j = plain_best_saving(instance)
    answers = [policy.allocate(instance) for policy in POLICIES.values()]

    assert max(answer.saving_j for answer in answers) <= best_j * (1 + 1e-6) + 1e-12
    assert min(answer.bound_j or 0.0 for answer in answers) >= best_j * (1 - 1e-6)


@given(instance=instances(most_devices=8, most_subcarriers=4))
@settings(max_examples=20, deadline=None)
def test_greedy_is_never_better_than_auto(instance: Instance) -> None:
    greedy, auto = (find_policy(name).allocate(instance) for name in ("greedy", "auto"))

    assert greedy.worth_j <= auto.worth_j * (1 + 3e-6) + 1e-12
    assert (greedy.bound_j or 0.0) >= auto.worth_j * (1 - 1e-9)


@pytest.mark.parametrize("name", POLICIES)
def test_the_same_instance_gets_the_same_answer(name: str) -> None:
    instance = radio_tight_setting(np.random.default_rng(3), 8, 6)
    first, second = (find_policy(name).allocate(instance) for _ in range(2))

    assert first.saving_j == second.saving_j
    assert np.array_equal(first.allocation.owners, second.allocation.owners)


@pytest.mark.parametrize("name", POLICIES)
def test_each_device_gets_its_better_subcarrier(name: str) -> None:
    answer = find_policy(name).allocate(two_devices())

    assert answer.allocation.owners.tolist() == [0, 1]
    assert answer.reasons.tolist() == [Reason.OFFLOADS, Reason.OFFLOADS]


@pytest.mark.parametrize("name", POLICIES)
def test_a_device_whose_upload_costs_more_than_its_run_stays_local(name: str) -> None:
    answer = find_policy(name).allocate(replace(two_devices(), chip_constant=1e-6))

    assert answer.reasons.tolist() == [Reason.NO_SAVING, Reason.NO_SAVING]
    assert answer.gap_share == 0.0


def test_free_subcarriers_go_where_they_help_most() -> None:
    plan = PartialPlan(SiteQuantities(two_devices()), {0: [0]}, {0: 3.0})
    assign_free_subcarriers(plan)

    assert plan.groups == {0: [0]}  # at this rate the second one is not worth any power

    hurried = PartialPlan(SiteQuantities(two_devices()), {0: [0]}, {0: 0.5})
    assign_free_subcarriers(hurried)

    assert hurried.groups == {0: [0, 1]}


def test_an_unknown_policy_is_answered_with_the_nearest() -> None:
    with pytest.raises(UnknownName, match="no edge policy 'gredy'; did you mean 'greedy'"):
        find_policy("gredy")


@pytest.mark.parametrize("name", POLICIES)
def test_more_devices_than_are_searched_get_a_plan_and_a_bound(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr("takeup.edge.solvers.bounds.MOST_DEVICES", 300)
    instance = paper_setting(np.random.default_rng(0), 450, 2)
    answer = find_policy(name).allocate(instance)

    assert violation_of_answer(instance, answer) is None
    assert answer.allocation.num_accepted == 2
    assert (answer.gap_share or 0.0) < 0.5
