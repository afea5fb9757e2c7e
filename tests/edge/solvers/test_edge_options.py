"""Groups of neighbours, groups of certain sizes, and modulations: against plain search, and for every policy."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from functools import cache, partial
from itertools import combinations, permutations, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edge.cells import optioned_instances, two_devices
from edge.plain_energy import plain_energy
from takeup.edge.energy import ABSENT, ROUNDING, ModulatedGroups, PrefixGroups, least_powers, oracle
from takeup.edge.model import Instance, Modulation, Radio
from takeup.edge.policies import POLICIES, find_policy
from takeup.edge.solvers.partial_plan import (
    PartialPlan,
    SiteQuantities,
    assign_free_subcarriers,
    longer_runs,
)
from takeup.edge.traces.files import CQI_64QAM
from takeup.edge.traces.generators import radio_tight_setting
from takeup.edge.validate import violation_of_answer

MODULATIONS = (Modulation(1.0, 1.5), Modulation(2.0, 4.0), Modulation(4.0, 20.0))
RADIO = Radio(bandwidth_hz=1.0, noise_w_per_hz=1.0, max_power_w=10.0, circuit_power_w=0.5, modulations=MODULATIONS)
LOGS = st.lists(st.floats(-2, 3), min_size=1, max_size=5)


# Plain search ---------------------------------------------------------------------------------------------------------


def plainly_modulated(gains: list[float], bits: float, limit_s: float, radio: Radio) -> float:
    """The least energy over all sets of subcarriers in use and all modulations."""
    best_j = math.inf
    for size in range(1, len(gains) + 1):
        for used, each in product(combinations(gains, size), radio.modulations):
            power_w = sum(each.least_ratio / gain for gain in used)
            time_s = bits / (radio.bandwidth_hz * each.bits_per_hz_s * size)
            if time_s <= limit_s * (1 + ROUNDING) and power_w <= radio.max_power_w:
                best_j = min(best_j, time_s * (radio.circuit_power_w + power_w))
    return best_j


def cost_of(instance: Instance, device: int, group: tuple[int, ...], limit_s: float) -> float:
    gains = [float(instance.gain_to_noise[device, each]) for each in group]
    search = plainly_modulated if instance.radio.modulations else plain_energy
    return search(gains, float(instance.bits[device]), limit_s, instance.radio)


def is_group(instance: Instance, group: tuple[int, ...]) -> bool:
    is_run = group[-1] - group[0] + 1 == len(group)
    return (is_run or not instance.contiguous) and (len(group) in instance.group_sizes or not instance.group_sizes)


def groups_of(instance: Instance) -> Iterator[dict[int, tuple[int, ...]]]:
    for owners in product(range(-1, instance.num_devices), repeat=instance.num_subcarriers):
        groups = {each: tuple(np.flatnonzero(np.array(owners) == each).tolist()) for each in set(owners) - {-1}}
        if all(is_group(instance, group) for group in groups.values()):
            yield groups


def best_saving(instance: Instance) -> float:
    """The largest saving of all groups that are allowed and all orders on one core."""
    best_j = 0.0
    cost = cache(partial(cost_of, instance))
    for groups in groups_of(instance):
        for order in permutations(groups):
            next_s, saving_j = math.inf, 0.0
            for device in reversed(order):
                next_s = min(float(instance.deadlines_s[device]), next_s) - float(instance.run_s[device])
                cost_j = cost(device, groups[device], next_s) if next_s > 0 else math.inf
                saving_j += float(instance.local_j[device]) - cost_j
            best_j = max(best_j, saving_j)
    return best_j


# Modulations ----------------------------------------------------------------------------------------------------------


def table(gains: list[float], bits: float = 2.0) -> ModulatedGroups:
    return ModulatedGroups(np.array(sorted(gains, reverse=True)), np.array(bits), RADIO)


def test_the_radio_says_which_oracle_answers() -> None:
    gains, bits = np.ones((1, 1)), np.ones(1)

    assert isinstance(oracle(gains, bits, RADIO), ModulatedGroups)
    assert isinstance(oracle(gains, bits, replace(RADIO, modulations=())), PrefixGroups)


def test_the_fastest_modulation_within_the_power_gives_the_shortest_upload() -> None:
    assert table([4.0, 4.0], bits=8.0).shortest_s.tolist() == [2.0, 1.0]  # 5 W and 10 W at four bits
    assert table([1.0], bits=8.0).shortest_s.tolist() == [4.0]  # four bits would take 20 W


def test_the_cheapest_upload_is_the_cheapest_that_is_in_time() -> None:
    upload = table([4.0], bits=8.0).whole(np.array(10.0))
    hurried = table([4.0], bits=8.0).whole(np.array(3.0))
    too_late = table([4.0], bits=8.0).whole(np.array(1.9))

    assert (float(upload.time_s), float(upload.energy_j)) == (4.0, 4.0 * (0.5 + 1.0))
    assert (float(hurried.time_s), float(hurried.energy_j)) == (2.0, 2.0 * (0.5 + 5.0))
    assert (float(too_late.time_s), float(too_late.energy_j)) == (math.inf, math.inf)


@given(logs=LOGS, bits=st.floats(0.1, 50), limit_s=st.floats(0.05, 50))
@settings(max_examples=60, deadline=None)
def test_no_choice_of_subcarriers_and_modulation_is_cheaper(logs: list[float], bits: float, limit_s: float) -> None:
    gains = sorted((10.0**log for log in logs), reverse=True)
    found = table(gains, bits)
    wholes = [plainly_modulated(gains[: k + 1], bits, limit_s, RADIO) for k in range(len(gains))]

    assert found.prefixes(np.array(limit_s)).energy_j.tolist() == pytest.approx(wholes, rel=1e-9)
    assert float(found.whole(np.array(limit_s)).energy_j) == pytest.approx(wholes[-1], rel=1e-9)


@given(logs=LOGS, bits=st.floats(0.1, 50), limit_s=st.floats(0.05, 50))
@settings(max_examples=60, deadline=None)
def test_the_powers_cost_what_the_oracle_said(logs: list[float], bits: float, limit_s: float) -> None:
    gains = np.array([10.0**log for log in logs])
    upload = table(gains.tolist(), bits).whole(np.array(limit_s))
    if np.isinf(upload.time_s):
        return
    powers_w = least_powers(gains, bits, float(upload.time_s), RADIO)

    ratios = (powers_w * gains)[powers_w > 0]
    assert float(upload.time_s) * (0.5 + powers_w.sum()) == pytest.approx(float(upload.energy_j), rel=1e-9)
    assert np.allclose(ratios, ratios[0])


def test_times_and_energies_of_prefixes_belong_together() -> None:
    found = table([8.0, 4.0, 0.001], bits=8.0).prefixes(np.array(100.0))

    assert found.energy_j[2] == found.energy_j[1]
    assert found.time_s[2] == found.time_s[1]


def test_absent_subcarriers_carry_nothing() -> None:
    padded, plain = (table(gains, 3.0).whole(np.array(5.0)) for gains in ([2.0, 1.0, ABSENT], [2.0, 1.0]))

    assert padded == plain


def test_the_table_of_the_standard_rises_and_keeps_below_shannon() -> None:
    rates = np.array([each.bits_per_hz_s for each in CQI_64QAM])
    ratios = np.array([each.least_ratio for each in CQI_64QAM])

    assert (len(rates), rates[0], rates[-1]) == (15, 0.1523, 5.5547)
    assert (np.diff(rates) > 0).all()
    assert (np.diff(ratios) > 0).all()
    assert (rates < np.log2(1 + ratios)).all()
    assert 10 * np.log10(ratios[[0, -1]]) == pytest.approx([-6.7, 22.7])


# Runs and sizes -------------------------------------------------------------------------------------------------------


@given(instance=optioned_instances(most_devices=4, most_subcarriers=5))
@settings(max_examples=30, deadline=None)
def test_the_smallest_group_is_the_first_that_saves(instance: Instance) -> None:
    site = SiteQuantities(instance)
    devices = np.arange(instance.num_devices)
    free = site.all_subcarriers[::2] if instance.num_subcarriers > 3 else site.all_subcarriers
    sizes, costs_j, ranked = site.smallest_groups(devices, free, site.latest_s)
    for device in devices.tolist():
        window_s = float(site.latest_s[device] - instance.releases_s[device])
        trials = [each for size in range(1, len(free) + 1) for each in combinations(free.tolist(), size)]
        costs = {each: cost_of(instance, device, each, window_s) for each in trials if is_group(instance, each)}
        saving = [each for each, cost_j in costs.items() if cost_j < site.worth_j[device] * (1 - 1e-6)]
        group = tuple(sorted(ranked[device, : sizes[device]].tolist()))

        assert len(group) == min(map(len, saving), default=0)
        if group:
            least_j = min(cost_j for each, cost_j in costs.items() if len(each) == len(group))
            assert costs_j[device] == pytest.approx(least_j, rel=1e-5)
            assert is_group(instance, group)


def test_a_run_can_grow_at_both_ends_into_what_is_free() -> None:
    free = np.array([0, 1, 4, 5, 7])

    assert list(longer_runs([2, 3], free, 1)) == [[4], [1]]
    assert list(longer_runs([2, 3], free, 2)) == [[4, 5], [1, 4], [0, 1]]
    assert list(longer_runs([2, 3], free, 5)) == []


def test_free_subcarriers_are_handed_out_at_the_ends_of_runs() -> None:
    instance = replace(two_devices(), gains=np.array([[4.0, 1.0, 4.0], [2.0, 2.0, 2.0]]), contiguous=True)
    plan = PartialPlan(SiteQuantities(instance), {0: [0]}, {0: 0.4})
    assign_free_subcarriers(plan)

    assert plan.groups == {0: [0, 1, 2]}  # the middle one first, although the last is better


def test_free_subcarriers_are_handed_out_in_steps_of_the_allowed_sizes() -> None:
    instance = replace(two_devices(), gains=np.array([[4.0, 3.0, 1.0, 2.0], [2.0] * 4]), group_sizes=(1, 3))
    plan = PartialPlan(SiteQuantities(instance), {0: [0]}, {0: 0.4})
    assign_free_subcarriers(plan)

    assert plan.groups == {0: [0, 1, 3]}


# Policies -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", POLICIES)
@given(instance=optioned_instances())
@settings(max_examples=25, deadline=None)
def test_every_answer_keeps_every_option(name: str, instance: Instance) -> None:
    policy = find_policy(name)
    answer = policy.allocate(instance)

    assert violation_of_answer(instance, answer, ignores_cpu=policy.ignores_cpu) is None
    assert answer.worth_j >= 0


@given(
    seed=st.integers(0, 1000),
    contiguous=st.booleans(),
    sizes=st.sampled_from([(), (2,), (1, 3)]),
    modulated=st.booleans(),
)
@settings(max_examples=6, deadline=None)
def test_nothing_beats_brute_force_under_any_option(
    seed: int, contiguous: bool, sizes: tuple[int, ...], modulated: bool
) -> None:
    plain = radio_tight_setting(np.random.default_rng(seed), 2, 4, 2e9)
    radio = replace(plain.radio, modulations=CQI_64QAM if modulated else ())
    instance = replace(plain, contiguous=contiguous, group_sizes=sizes, radio=radio)
    contenders = [policy for policy in POLICIES.values() if not policy.ignores_cpu]

    best_j = best_saving(instance)
    assert max(each.allocate(instance).saving_j for each in contenders) <= best_j * (1 + 1e-6) + 1e-12


def test_neighbours_and_modulations_cost_something() -> None:
    cells = [radio_tight_setting(np.random.default_rng([7, seed]), 4, 8) for seed in range(5)]
    auto = find_policy("auto")

    def saving_j(**options: object) -> float:
        return sum(auto.allocate(replace(cell, **options)).saving_j for cell in cells)  # type: ignore[arg-type,misc]

    modulated = replace(cells[0].radio, modulations=CQI_64QAM)
    assert saving_j(contiguous=True) < saving_j()
    assert saving_j(radio=modulated) < saving_j()
    assert saving_j(radio=modulated) > 0.5 * saving_j()


def test_a_size_that_no_cell_has_offloads_nobody() -> None:
    answer = find_policy("greedy").allocate(replace(two_devices(), group_sizes=(3,)))

    assert answer.allocation.num_accepted == 0
