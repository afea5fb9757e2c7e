"""Prices and columns: every offer is an upper bound, and so is the sum of prices and profits."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edge.cells import instances, two_devices
from takeup.edge.model import Instance
from takeup.edge.policies.exact import Exact
from takeup.edge.solvers.column_generation import (
    ColumnSet,
    CombinedPricer,
    Duals,
    GenerationRounds,
    ListedPricer,
    SlotGrid,
    WidePricer,
    generate,
    list_groups,
    slot_grid,
    solve_master,
)
from takeup.edge.solvers.compiled.pricing import cheapest_starts
from takeup.edge.traces.generators import radio_tight_setting


def listed(instance: Instance, grid: SlotGrid) -> ListedPricer:
    return ListedPricer(instance, list_groups(instance), grid)


def both(instance: Instance, grid: SlotGrid, size: int) -> CombinedPricer:
    return CombinedPricer(
        ListedPricer(instance, list_groups(instance, size), grid), WidePricer(instance, grid, size + 1)
    )


def random_prices(instance: Instance, grid: SlotGrid, seed: int) -> Duals:
    random = np.random.default_rng(seed)
    scale_j = float(instance.worth_j.mean())
    return Duals(
        random.uniform(0, scale_j, instance.num_subcarriers), random.uniform(0, scale_j / 4, len(grid.capacity_s))
    )


@given(seed=st.integers(0, 10_000), num_slots=st.integers(1, 12))
@settings(max_examples=30, deadline=None)
def test_no_start_in_a_slot_is_cheaper_than_the_one_found(seed: int, num_slots: int) -> None:
    random = np.random.default_rng(seed)
    edges_s = np.concatenate([[0.0], np.cumsum(random.uniform(0.1, 1.0, num_slots))])
    omega = np.concatenate([[0.0], np.cumsum(random.exponential(size=num_slots))])
    run_s, latest_s = random.uniform(0.05, 2.0, 3), random.uniform(0.0, float(edges_s[-1]), 3)
    found = cheapest_starts(edges_s, omega, np.full(3, 0.05), latest_s, run_s)

    for device, slot in np.ndindex(3, num_slots):
        low_s, high_s = max(0.05, float(edges_s[slot])), min(float(edges_s[slot + 1]), float(latest_s[device]))
        starts_s = np.linspace(low_s, high_s, 200)
        if starts_s[0] > starts_s[-1]:
            assert np.isnan(found[device, slot]).all()
            continue
        prices = np.interp(starts_s + run_s[device], edges_s, omega) - np.interp(starts_s, edges_s, omega)
        assert found[device, slot, 1] <= prices.min() + 1e-12
        assert edges_s[slot] <= found[device, slot, 0] <= edges_s[slot + 1]


@given(seed=st.integers(0, 10_000), size=st.integers(1, 3))
@settings(max_examples=60, deadline=None)
def test_duality_never_offers_less_than_looking_at_every_group(seed: int, size: int) -> None:
    instance = radio_tight_setting(np.random.default_rng(seed), 4, 5, 3e9)
    grid = slot_grid(instance, 6)
    # free CPU time: otherwise small groups, which upload later, cannot have the cheapest starts of all groups
    duals = random_prices(instance, grid, seed)._replace(slots_j=np.zeros(6))
    true_j = listed(instance, grid).offers(duals).profits_j
    offered_j = both(instance, grid, size).offers(duals).profits_j

    assert (offered_j >= true_j - 1e-9).all()


@given(instance=instances(most_devices=6, most_subcarriers=4), seed=st.integers(0, 1000))
@settings(max_examples=20, deadline=None)
def test_any_prices_make_a_bound(instance: Instance, seed: int) -> None:
    if instance.num_devices == 0:
        return
    grid = slot_grid(instance, 7)
    duals = random_prices(instance, grid, seed)
    profits_j = np.maximum(0.0, listed(instance, grid).offers(duals).profits_j.max(axis=1))
    bound_j = duals.subcarriers_j.sum() + duals.slots_j.sum() + profits_j.sum()

    assert bound_j >= Exact().allocate(instance).worth_j * (1 - 1e-9)


@pytest.mark.parametrize(
    "rounds", [GenerationRounds(1, 0), GenerationRounds(30, 0), GenerationRounds(30, 5), GenerationRounds(0, 20)]
)
def test_more_rounds_keep_the_bound_valid(rounds: GenerationRounds) -> None:
    instance = radio_tight_setting(np.random.default_rng(1001), 8, 4, 2e9)
    best_j = Exact().allocate(instance).worth_j
    grid = slot_grid(instance, 12)
    generated = generate(instance, grid, listed(instance, grid), best_j, rounds)

    assert best_j * (1 - 1e-9) <= generated.bound_j <= instance.worth_j.sum()
    assert (generated.columns.value_j > 0).all()


def test_prices_that_were_looked_for_longer_are_better() -> None:
    instance = radio_tight_setting(np.random.default_rng(1001), 12, 6, 4e9)
    known_j = Exact().allocate(instance).worth_j
    grid = slot_grid(instance, 12)
    bounds_j = [
        generate(instance, grid, listed(instance, grid), known_j, rounds).bound_j
        for rounds in (GenerationRounds(5, 0), GenerationRounds(60, 0), GenerationRounds(60, 10))
    ]

    assert bounds_j[0] > bounds_j[1] > bounds_j[2] > known_j


# The master problem ---------------------------------------------------------------------------------------------------


def three_columns() -> ColumnSet:
    """Both devices over the first subcarrier at the same time, or the second device over the other one later."""
    return ColumnSet(
        np.array([0, 1, 1]),
        np.array([[True, False], [True, False], [False, True]]),
        np.array([2.0, 2.0, 3.0]),
        np.array([30.0, 3.0, 2.0]),
    )


def test_runs_take_the_shares_of_slots_that_they_cover() -> None:
    grid = SlotGrid(np.array([0.0, 1.0, 3.0]), 2)

    assert grid.capacity_s.tolist() == [2.0, 4.0]
    assert grid.usage(np.array([0.5]), np.array([1.5])).tolist() == [[0.25, 0.25]]


def test_the_best_mix_and_its_prices() -> None:
    grid = slot_grid(two_devices(), 4)
    mix = solve_master(two_devices(), grid, three_columns())

    assert mix.value_j == pytest.approx(32.0)
    assert mix.shares.tolist() == pytest.approx([1.0, 0.0, 1.0])
    assert 0 <= mix.duals.subcarriers_j.sum() + mix.duals.slots_j.sum() <= 32.0 + 1e-9
