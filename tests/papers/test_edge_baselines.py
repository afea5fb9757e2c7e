"""Admission in a fixed order, and the search by single exchanges: by hand, and that they stop where they say."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings

from edge.cells import instances, two_devices
from takeup.edge.model import Instance, Reason
from takeup.edge.solvers.partial_plan import PartialPlan, SiteQuantities
from takeup.edge.traces.generators import paper_setting, radio_tight_setting
from takeup.edge.validate import violation_of_answer
from takeup.papers.edge.baselines import COMPARED, Jtora, _admit, _changes, _orders


def narrow(**changes: object) -> Instance:
    """Two devices, one subcarrier: only one of them can offload."""
    return replace(two_devices(), gains=np.array([[4.0], [4.0]]), **changes)  # type: ignore[arg-type]


def test_the_largest_saving_is_admitted_first() -> None:
    answer = COMPARED["car_p"].allocate(narrow())

    assert answer.reasons.tolist() == [Reason.OFFLOADS, Reason.CROWDED_OUT]


def test_who_cannot_finish_alone_comes_before_who_saves_more() -> None:
    instance = narrow(local_hz=1.9, deadlines_s=np.array([4.3, 2.0]))  # the first needs 1.86 Hz, the second 2 Hz
    orders = _orders(SiteQuantities(instance), np.arange(2))

    assert instance.too_slow.tolist() == [False, True]
    assert instance.local_j[0] > instance.local_j[1]
    assert [order.tolist() for order in orders] == [[1, 0], [1, 0]]


def test_the_second_order_goes_by_the_rate_that_is_needed() -> None:
    by_saving, by_rate = _orders(SiteQuantities(narrow(bits=np.array([2.0, 1.0]))), np.arange(2))

    assert by_saving.tolist() == [0, 1]
    assert by_rate.tolist() == [1, 0]


@given(instance=instances(most_devices=10))
@settings(max_examples=20, deadline=None)
def test_the_better_of_both_orders_is_the_answer(instance: Instance) -> None:
    site = SiteQuantities(instance)
    plans = [_admit(site, order) for order in _orders(site, site.promising())]
    answer = COMPARED["car_p"].allocate(instance)

    assert answer.worth_j == pytest.approx(max(plan.worth_j() for plan in plans), rel=1e-9, abs=1e-12)


def test_an_exchange_replaces_a_device_that_is_worth_less() -> None:
    site = SiteQuantities(narrow())
    plan = PartialPlan(site, {1: [0]}, {1: 3.5})
    changes = list(_changes(plan, np.arange(2)))

    assert [sorted(change.groups) for _, change in changes] == [[], [0]]
    assert max(changes, key=lambda change: change[0])[1].groups == {0: [0]}


@given(instance=instances())
@settings(max_examples=20, deadline=None)
def test_a_change_is_worth_what_it_says(instance: Instance) -> None:
    site = SiteQuantities(instance)
    answer = COMPARED["joint_append"].allocate(instance).allocation
    devices = np.flatnonzero(answer.offloads).tolist()
    groups = {device: answer.group(device).tolist() for device in devices}
    plan = PartialPlan(site, groups, {device: float(answer.start_s[device]) for device in devices})

    for worth_j, change in _changes(plan, site.promising()):
        if np.isfinite(worth_j):
            assert change.worth_j() == pytest.approx(worth_j, rel=1e-6, abs=1e-9)


def test_a_search_that_asks_for_large_steps_stops_earlier() -> None:
    cells = [radio_tight_setting(np.random.default_rng([3, seed]), 12, 6) for seed in range(3)]
    fine, coarse = (
        [Jtora(epsilon=epsilon).allocate(cell).saving_j for cell in cells] for epsilon in (0.1, 0.2 * (12 * 6) ** 2)
    )

    assert all(one >= other for one, other in zip(fine, coarse, strict=True))
    assert sum(fine) > sum(coarse)


def test_baselines_lie_between_separate_allocations_and_the_search() -> None:
    cells = [radio_tight_setting(np.random.default_rng([5, seed]), 12, 8) for seed in range(4)]

    def saving_j(name: str) -> float:
        return sum(COMPARED[name].allocate(cell).saving_j for cell in cells)

    for name in ("car_p", "jtora", "gma"):
        assert saving_j("radio_first") < saving_j(name) <= saving_j("exact") * (1 + 1e-9)


def test_appended_tasks_run_in_the_order_of_their_savings() -> None:
    instance = paper_setting(np.random.default_rng(4), 6)
    allocation = COMPARED["joint_append"].allocate(instance).allocation
    by_start = np.argsort(np.where(allocation.offloads, allocation.start_s, np.inf))[: allocation.num_accepted]

    assert np.all(np.diff(instance.local_j[by_start]) < 0)


@pytest.mark.parametrize("name", ["joint_append", "car_p", "jtora"])
def test_plans_keep_every_constraint(name: str) -> None:
    for instance in (paper_setting(np.random.default_rng(2), 9), radio_tight_setting(np.random.default_rng(2), 14)):
        assert violation_of_answer(instance, COMPARED[name].allocate(instance)) is None
