"""Nothing is left to exchange after a search: neither subcarriers, nor turns on the core."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings

from edge.cells import instances, two_devices
from takeup.edge.model import Answer, Instance
from takeup.edge.policies.joint import JointPlus, improve
from takeup.edge.solvers.partial_plan import PartialPlan, SiteQuantities, assign_free_subcarriers, exchange_subcarriers


def plan_of(instance: Instance, answer: Answer) -> PartialPlan:
    """The plain plan of an answer."""
    allocation = answer.allocation
    devices = np.flatnonzero(allocation.offloads).tolist()
    groups = {device: allocation.group(device).tolist() for device in devices}
    return PartialPlan(
        SiteQuantities(instance),
        groups,
        {device: float(np.nextafter(allocation.start_s[device], 9)) for device in devices},
    )


@given(instance=instances(most_devices=10, most_subcarriers=6))
@settings(max_examples=40, deadline=None)
def test_no_move_or_swap_of_subcarriers_is_left(instance: Instance) -> None:
    plan = plan_of(instance, JointPlus().allocate(instance))
    before_j = plan.worth_j()
    assign_free_subcarriers(plan)
    exchange_subcarriers(plan)

    assert plan.worth_j() == pytest.approx(before_j, rel=1e-6)


@given(instance=instances(most_devices=10, most_subcarriers=6).map(lambda each: replace(each, num_cores=1)))
@settings(max_examples=30, deadline=None)
def test_no_swap_of_neighbouring_turns_is_left(instance: Instance) -> None:
    plan = plan_of(instance, JointPlus().allocate(instance))
    before_j = plan.worth_j()
    order = sorted(plan.groups, key=lambda device: plan.limits_s[device])
    for turn in range(len(order) - 1):
        swapped = [*order[:turn], order[turn + 1], order[turn], *order[turn + 2 :]]
        next_s = math.inf
        for device in reversed(swapped):
            next_s = min(float(instance.deadlines_s[device]), next_s) - float(instance.run_s[device])
            plan.limits_s[device] = next_s

        assert plan.worth_j() <= before_j * (1 + 1e-6)


def test_subcarriers_change_places_where_both_are_better_off() -> None:
    answer = improve(two_devices(), {0: [1], 1: [0]}, most_work=0)

    assert answer.allocation.owners.tolist() == [0, 1]


def test_a_better_subcarrier_that_nobody_has_is_taken() -> None:
    instance = replace(two_devices(), cycles=np.array([8.0, 1e-3]))  # the second one would save next to nothing
    answer = improve(instance, {0: [1]}, most_work=0)

    assert answer.allocation.owners[0] == 0
