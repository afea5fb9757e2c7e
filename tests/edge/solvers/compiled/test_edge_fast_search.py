"""The search of the kernels: near the optimum of small cells, with a limit on its work, and from starts of others."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import combinations, permutations, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edge.cells import instances, two_devices
from edge.plain_energy import plain_best_saving
from takeup.edge.energy import PrefixGroups
from takeup.edge.model import Instance
from takeup.edge.policies.joint import Joint, JointPlus, improve
from takeup.edge.traces.generators import paper_setting, radio_tight_setting
from takeup.edge.validate import violation_of_answer
from takeup.errors import BadInput


class Optimum:
    """The best worth on one core by trying all sets, orders and groups, the hopeful sets first."""

    def __init__(self, instance: Instance) -> None:
        self.instance = instance
        self.count = instance.num_subcarriers
        self.tables = {
            (device, group): PrefixGroups(
                -np.sort(-instance.gain_to_noise[device, list(group)]), instance.bits[device], instance.radio
            )
            for device in range(instance.num_devices)
            for size in range(1, self.count + 1)
            for group in combinations(range(self.count), size)
        }
        self.known: dict[tuple[int, tuple[int, ...], float], float] = {}

    def gain(self, device: int, group: tuple[int, ...], start_s: float) -> float:
        """What a device adds with this group if its core begins then."""
        table = self.tables[device, group]
        window_s = start_s - float(self.instance.releases_s[device])
        time_s = min(float(table.cheapest_s[-1]), window_s)  # all longer windows are alike
        key = (device, group, time_s if window_s > 0 else -1.0)
        if key not in self.known:
            limit = np.array(window_s)
            cost_j = float(table.whole(limit).energy_j) if window_s > 0 else math.inf
            self.known[key] = float(self.instance.worth_j[device]) - cost_j
        return self.known[key]

    def worth(self) -> float:
        """The best of all."""
        instance, everything = self.instance, tuple(range(self.count))
        latest_s = instance.deadlines_s - instance.run_s
        reach_j = [self.gain(device, everything, latest_s[device]) for device in range(instance.num_devices)]
        hopeful = [device for device in range(instance.num_devices) if reach_j[device] > 0]
        sets = [each for size in range(1, self.count + 1) for each in combinations(hopeful, size)]
        sets.sort(key=lambda each: -sum(reach_j[device] for device in each))
        best_j = 0.0
        for devices in sets:
            if sum(reach_j[device] for device in devices) <= best_j:
                break
            best_j = max(best_j, *(self._best_groups(order, best_j) for order in permutations(devices)))
        return best_j

    def _best_groups(self, order: tuple[int, ...], least_j: float) -> float:
        starts_s, next_s = {}, math.inf
        for device in reversed(order):
            next_s = min(float(self.instance.deadlines_s[device]), next_s) - float(self.instance.run_s[device])
            starts_s[device] = next_s
        everything = tuple(range(self.count))
        if sum(self.gain(device, everything, starts_s[device]) for device in order) <= least_j:
            return 0.0
        best_j = 0.0
        for owners in product(order, repeat=self.count):
            groups = {device: tuple(each for each in everything if owners[each] == device) for device in order}
            if all(groups.values()):
                best_j = max(best_j, sum(self.gain(device, groups[device], starts_s[device]) for device in order))
        return best_j


@pytest.mark.parametrize("num_devices", [5, 7, 9])
def test_the_search_is_close_to_the_optimum_in_the_cell_of_the_paper(num_devices: int) -> None:
    cells = [paper_setting(np.random.default_rng([8, num_devices, seed]), num_devices) for seed in range(12)]
    gaps = [1 - JointPlus().allocate(cell).worth_j / Optimum(cell).worth() for cell in cells]

    assert max(gaps) <= 0.05
    assert np.mean(gaps) <= 0.003
    assert min(gaps) >= -1e-9


@given(seed=st.integers(0, 1000))
@settings(max_examples=6, deadline=None)
def test_the_optimum_of_these_tests_is_that_of_brute_force(seed: int) -> None:
    instance = radio_tight_setting(np.random.default_rng(seed), 3, 2, 2e9)

    assert Optimum(instance).worth() == pytest.approx(plain_best_saving(instance), rel=1e-6, abs=1e-12)


def test_the_search_takes_two_out_for_one_that_saves_more() -> None:
    instance = paper_setting(np.random.default_rng([5, 1141]), 5)
    answer = JointPlus().allocate(instance)

    assert np.flatnonzero(answer.allocation.offloads).tolist() == [0, 3, 4]
    assert answer.worth_j == pytest.approx(Optimum(instance).worth(), rel=1e-9)


def test_turns_are_swapped_where_that_saves_energy() -> None:
    """The first device uploads slowly and would like the later turn, although its deadline is a little earlier."""
    instance = replace(
        two_devices(),
        gains=np.array([[0.5, 1e-3], [1e-3, 50.0]]),
        bits=np.array([6.0, 2.0]),
        cycles=np.array([8.0, 8.0]),
        deadlines_s=np.array([4.4, 4.5]),
        chip_constant=10.0,
    )
    swapped, in_order = (policy.allocate(instance).allocation for policy in (JointPlus(), Joint()))

    assert in_order.start_s.tolist() == [2.5, 3.5]
    assert swapped.start_s.tolist() == pytest.approx([3.4, 2.4])
    assert swapped.energy_j < 0.8 * in_order.energy_j


@given(instance=instances())
@settings(max_examples=15, deadline=None)
def test_more_work_is_never_worse(instance: Instance) -> None:
    worths_j = [JointPlus(most_work=most_work).allocate(instance).worth_j for most_work in (0, 300, 10_000)]

    assert worths_j[0] <= worths_j[1] * (1 + 1e-9)
    assert worths_j[1] <= worths_j[2] * (1 + 1e-9)


# Starts ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("contiguous", [False, True])
def test_a_set_of_devices_can_be_a_start(contiguous: bool) -> None:
    instance = replace(radio_tight_setting(np.random.default_rng([5, 3]), 5, 3, 2e9), contiguous=contiguous)
    lazy = JointPlus(most_work=0, most_tried=0)
    alone, told = lazy.allocate(instance), lazy.allocate(instance, starts=[{1: (), 2: ()}, {}])

    assert violation_of_answer(instance, told) is None
    assert told.worth_j >= alone.worth_j * (1 - 1e-9)


def test_a_start_is_followed_if_it_is_better_than_the_greedy_plans() -> None:
    instance = radio_tight_setting(np.random.default_rng([5, 3]), 5, 3, 2e9)
    lazy = JointPlus(most_work=0)
    told = lazy.allocate(instance, starts=[{1: (), 2: ()}])

    assert told.allocation.offloads.tolist() == [False, True, True, False, False]
    assert told.worth_j > 1.2 * lazy.allocate(instance).worth_j


@given(instance=instances(most_devices=8), data=st.data())
@settings(max_examples=30, deadline=None)
def test_any_groups_are_repaired_and_improved(instance: Instance, data: st.DataObject) -> None:
    owners = data.draw(
        st.lists(
            st.integers(-1, instance.num_devices - 1),
            min_size=instance.num_subcarriers,
            max_size=instance.num_subcarriers,
        )
    )
    groups = {owner: [each for each, who in enumerate(owners) if who == owner] for owner in set(owners) - {-1}}
    improved = improve(instance, groups)

    assert violation_of_answer(instance, improved) is None
    assert improved.worth_j >= Joint().allocate(instance).worth_j * (1 - 1e-9)


@given(instance=instances(most_devices=8))
@settings(max_examples=15, deadline=None)
def test_a_good_plan_is_not_made_worse(instance: Instance) -> None:
    found = JointPlus().allocate(instance)
    devices = np.flatnonzero(found.allocation.offloads).tolist()
    again = improve(instance, {device: found.allocation.group(device).tolist() for device in devices}, most_work=0)

    assert again.worth_j >= found.worth_j * (1 - 1e-3)


def test_groups_are_repaired_plainly_too() -> None:
    instance = replace(paper_setting(np.random.default_rng(4), 6), group_sizes=(1,))
    improved = improve(instance, {0: [0], 1: [1], 2: [2], 3: [3]})

    assert violation_of_answer(instance, improved) is None
    assert improved.worth_j >= Joint().allocate(instance).worth_j * (1 - 1e-9)


@pytest.mark.parametrize(
    ("groups", "problem"),
    [
        ({9: [0]}, "names device 9, the instance has 2"),
        ({-1: [0]}, "names device -1"),
        ({0: [5]}, "names subcarrier 5, the instance has 2"),
        ({0: [0], 1: [1, 0]}, "gives subcarrier 0 away twice"),
    ],
)
def test_a_start_that_makes_no_sense_is_refused(groups: dict[int, list[int]], problem: str) -> None:
    with pytest.raises(BadInput, match=problem):
        improve(two_devices(), groups)
