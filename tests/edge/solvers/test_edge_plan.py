"""The parts policies are made of, against plainer ways to the same result."""

from __future__ import annotations

import math
from itertools import chain

import numpy as np
import pytest
from hypothesis import given, settings

from edge.cells import instances, two_devices
from edge.plain_energy import plain_energy
from takeup.edge.model import Instance, Reason
from takeup.edge.solvers.partial_plan import PartialPlan, SiteQuantities, accept, assign_free_subcarriers, consider
from takeup.edge.traces.generators import radio_tight_setting
from takeup.papers.edge.joint import assign_groups, grow


def plainly_given(site: SiteQuantities, limits_s: list[float]) -> dict[int, list[int]]:
    """Smallest groups by largest saving, everything computed again in every round."""
    given_groups: dict[int, list[int]] = {}
    while True:
        taken = set(chain(*given_groups.values()))
        free = [each for each in site.all_subcarriers.tolist() if each not in taken]
        best: tuple[float, int, list[int]] = (0.0, -1, [])
        for device in range(site.instance.num_devices):
            ranked = sorted(free, key=lambda each, device=device: -site.gains[device, each])  # type: ignore[misc]
            for size in range(1, len(ranked) + 1) if device not in given_groups else ():
                plan = PartialPlan(site, {device: ranked[:size]}, {device: limits_s[device]})
                if (saving_j := plan.worth_j()) > 0:
                    best = max(best, (saving_j, device, ranked[:size]), key=lambda each: each[0])
                    break
        if best[1] < 0:
            return given_groups
        given_groups[best[1]] = best[2]


@given(instance=instances(most_devices=6, most_subcarriers=4))
@settings(max_examples=15, deadline=None)
def test_groups_are_given_as_if_everything_were_computed_in_every_round(instance: Instance) -> None:
    site = SiteQuantities(instance)
    plan = assign_groups(site, site.promising(), site.latest_s)

    assert plan.groups == plainly_given(site, site.latest_s.tolist())


@given(instance=instances(most_devices=8))
@settings(max_examples=20, deadline=None)
def test_the_worth_of_a_newcomer_is_what_the_plan_saves_more_with_it(instance: Instance) -> None:
    site = SiteQuantities(instance)
    plan = PartialPlan(site)
    while len((newcomers := consider(plan, np.setdiff1d(site.promising(), plan.devices))).devices):
        before_j = plan.worth_j()
        accept(plan, newcomers, 0)

        assert plan.worth_j() - before_j == pytest.approx(newcomers.gains_j[0], rel=1e-6, abs=1e-12)


@given(instance=instances())
@settings(max_examples=20, deadline=None)
def test_handing_out_subcarriers_never_costs_anything(instance: Instance) -> None:
    site = SiteQuantities(instance)
    plan = PartialPlan(site)
    grow(plan, site.promising())
    before_j, limits_s = plan.worth_j(), dict(plan.limits_s)
    assign_free_subcarriers(plan)

    assert plan.worth_j() >= before_j
    assert plan.limits_s == limits_s


def test_a_plan_costs_what_its_uploads_cost_one_by_one() -> None:
    instance = radio_tight_setting(np.random.default_rng(2), 3, 4)
    plan = PartialPlan(SiteQuantities(instance), {2: [1, 3], 0: [0]}, {2: 0.15, 0: 0.3})
    gains = instance.gain_to_noise
    alone = [
        plain_energy(gains[2, [1, 3]].tolist(), float(instance.bits[2]), 0.15, instance.radio),
        plain_energy(gains[0, [0]].tolist(), float(instance.bits[0]), 0.3, instance.radio),
    ]

    assert plan.uploads().energy_j.tolist() == pytest.approx(alone, rel=1e-6)
    assert plan.free().tolist() == [2]


def test_a_device_without_a_start_is_dropped_but_keeps_its_subcarrier() -> None:
    plan = PartialPlan(SiteQuantities(two_devices()), {0: [0], 1: [1]}, {0: 3.0, 1: 3.0})
    reasons = np.full(2, np.int8(Reason.MISSED_CPU))
    answer = plan.answer("hand", reasons, np.array([3.0, math.nan]))

    assert answer.allocation.offloads.tolist() == [True, False]
    assert answer.allocation.owners.tolist() == [0, 1]
    assert answer.allocation.powers_w[1] == 0.0
    assert answer.allocation.energies_j[1] == 4.0
    assert answer.reasons.tolist() == [Reason.OFFLOADS, Reason.MISSED_CPU]


def test_a_copy_of_a_plan_changes_alone() -> None:
    plan = PartialPlan(SiteQuantities(two_devices()), {0: [0]}, {0: 3.0})
    copy = plan.copy()
    copy.groups[0].append(1)
    copy.limits_s[0] = 1.0

    assert plan.groups == {0: [0]}
    assert plan.limits_s == {0: 3.0}
