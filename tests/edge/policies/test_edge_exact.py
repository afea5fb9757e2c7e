"""The search through all plans: as good as brute force, never below any policy, and its bound is the truth."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edge.cells import instances, two_devices
from edge.plain_energy import plain_best_saving
from takeup.edge.model import Instance, Modulation
from takeup.edge.policies import POLICIES
from takeup.edge.policies.exact import Exact
from takeup.edge.solvers.column_generation import can_list, group_of, list_groups
from takeup.edge.solvers.compiled.branch_and_bound import share_subcarriers
from takeup.edge.solvers.compiled.pricing import group_costs
from takeup.edge.solvers.partial_plan import PartialPlan, SiteQuantities
from takeup.edge.traces.generators import paper_setting, radio_tight_setting
from takeup.edge.validate import violation_of_answer

PROVEN = 3e-6  # of the worth
CONTENDERS = [name for name, policy in POLICIES.items() if not policy.ignores_cpu]


def bound_of(instance: Instance) -> float:
    bound_j = Exact().allocate(instance).bound_j

    assert bound_j is not None
    return bound_j


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("is_paper", [True, False])
def test_the_best_plan_is_the_one_of_brute_force(seed: int, is_paper: bool) -> None:
    random = np.random.default_rng([7, seed])
    instance = paper_setting(random, 5, 2) if is_paper else radio_tight_setting(random, 4, 3, 2e9)
    answer = Exact().allocate(instance)

    assert answer.worth_j == pytest.approx(plain_best_saving(instance), rel=1e-5)
    assert answer.gap_share == pytest.approx(0.0, abs=PROVEN)


@given(instance=instances(most_devices=7, most_subcarriers=4))
@settings(max_examples=25, deadline=None)
def test_no_policy_is_better_and_the_bound_is_next_to_the_best(instance: Instance) -> None:
    answer = Exact().allocate(instance)
    others_j = [POLICIES[name].allocate(instance).worth_j for name in CONTENDERS]

    assert violation_of_answer(instance, answer) is None
    assert answer.bound_j is not None
    assert max(others_j) <= answer.worth_j * (1 + PROVEN) + 1e-12
    assert answer.worth_j <= answer.bound_j <= answer.worth_j * (1 + PROVEN) + 1e-12


@given(instance=instances(most_devices=6, most_subcarriers=3), seed=st.integers(0, 1000))
@settings(max_examples=15, deadline=None)
def test_more_of_anything_never_lowers_the_bound(instance: Instance, seed: int) -> None:
    fading = np.random.default_rng(seed).exponential(size=(instance.num_devices, 1)) + 1e-9
    more_radio = replace(instance, gains=np.column_stack([instance.gains, instance.gains[:, :1] * fading]))
    more = [
        more_radio,
        replace(instance, num_cores=instance.num_cores + 1),
        replace(instance, edge_hz=instance.edge_hz * 1.3),
    ]
    least_j = bound_of(instance) * (1 - PROVEN) - 1e-12

    assert all(bound_of(each) >= least_j for each in more)


@pytest.mark.parametrize(
    "options", [{"contiguous": True}, {"group_sizes": (2,)}, {"contiguous": True, "group_sizes": (1, 3)}]
)
@pytest.mark.parametrize("seed", range(3))
def test_groups_that_are_not_allowed_are_not_used(options: dict[str, object], seed: int) -> None:
    free = radio_tight_setting(np.random.default_rng([8, seed]), 6, 4, 3e9)
    bound = replace(free, **options)  # type: ignore[arg-type]
    answer = Exact().allocate(bound)

    assert violation_of_answer(bound, answer) is None
    assert answer.gap_share == pytest.approx(0.0, abs=PROVEN)
    assert answer.worth_j <= Exact().allocate(free).worth_j * (1 + PROVEN)


@pytest.mark.parametrize("seed", range(3))
def test_modulations_are_searched_as_well(seed: int) -> None:
    free = radio_tight_setting(np.random.default_rng([9, seed]), 5, 3, 3e9)
    modulations = tuple(Modulation(rate, 1.5 * (2.0**rate - 1)) for rate in (0.5, 1.0, 2.0, 4.0, 6.0))
    coded = replace(free, radio=replace(free.radio, modulations=modulations))
    answer = Exact().allocate(coded)

    assert violation_of_answer(coded, answer) is None
    assert answer.gap_share == pytest.approx(0.0, abs=PROVEN)
    assert 0 < answer.worth_j < Exact().allocate(free).worth_j


def test_a_search_that_is_cut_short_says_so_with_its_gap() -> None:
    instance = radio_tight_setting(np.random.default_rng(1001), 12, 6, 4e9)
    whole, cut = Exact().allocate(instance), Exact(most_work=100).allocate(instance)

    assert whole.gap_share is not None
    assert cut.gap_share is not None
    assert whole.gap_share < PROVEN < cut.gap_share
    assert cut.worth_j <= whole.worth_j * (1 + PROVEN)
    assert cut.bound_j is not None
    assert cut.bound_j >= whole.worth_j


def test_nobody_to_serve_is_served_best_by_nothing() -> None:
    instance = paper_setting(np.random.default_rng(0), 0)
    answer = Exact().allocate(instance)

    assert (answer.worth_j, answer.bound_j, answer.gap_share) == (0.0, 0.0, 0.0)


# Parts ----------------------------------------------------------------------------------------------------------------


@given(instance=instances(most_devices=4, most_subcarriers=4), share_of_window=st.floats(0.05, 1.0))
@settings(max_examples=25, deadline=None)
def test_listed_groups_cost_what_plans_with_them_cost(instance: Instance, share_of_window: float) -> None:
    site = SiteQuantities(instance)
    windows_s = (site.latest_s - instance.releases_s)[:, None] * share_of_window
    costs_j = group_costs(list_groups(instance), windows_s)
    devices = np.arange(instance.num_devices)

    for mask in range(1, 1 << instance.num_subcarriers):
        groups = [group_of(mask)] * instance.num_devices
        expected_j = site.table(devices, groups).whole(windows_s).energy_j[:, 0]
        np.testing.assert_allclose(costs_j[:, 0, mask], expected_j, rtol=1e-9)


def test_devices_share_subcarriers_at_the_least_energy() -> None:
    masks = share_subcarriers(list_groups(two_devices()), np.array([1, 0]), np.array([3.0, 3.0]))

    assert masks.tolist() == [2, 1]


def test_devices_that_cannot_upload_in_time_have_no_groups() -> None:
    masks = share_subcarriers(list_groups(two_devices()), np.array([1, 0]), np.array([3.0, 1e-9]))

    assert masks.tolist() == [0, 0]


def test_small_groups_can_be_listed_alone() -> None:
    instance = radio_tight_setting(np.random.default_rng(0), 3, 5)
    small, all_groups = list_groups(instance, 2), list_groups(instance)

    assert len(small.masks) == 5 + 10
    np.testing.assert_allclose(small.least_j, all_groups.least_j[:, small.masks], rtol=1e-12)


def test_many_subcarriers_or_devices_are_not_listed() -> None:
    random = np.random.default_rng(0)

    assert can_list(paper_setting(random, 9, 4), 24)
    assert not can_list(paper_setting(random, 9, 11), 24)
    assert not can_list(paper_setting(random, 50_000, 2), 24)
    assert not can_list(paper_setting(random, 0, 2), 24)


def test_a_plan_of_the_search_is_worth_what_its_answer_says() -> None:
    instance = radio_tight_setting(np.random.default_rng(1005), 12, 6, 4e9)
    allocation = Exact().allocate(instance).allocation
    devices = np.flatnonzero(allocation.offloads).tolist()
    groups = {device: allocation.group(device).tolist() for device in devices}
    plan = PartialPlan(
        SiteQuantities(instance), groups, {device: float(allocation.start_s[device]) for device in devices}
    )

    assert plan.worth_j() == pytest.approx(Exact().allocate(instance).worth_j, rel=1e-9)
