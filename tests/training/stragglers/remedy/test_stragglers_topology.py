"""Rings and grids: the best order and the best places by trying all of them, and what is foretold."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support import node_placement as rings
from support.node_placement import NodeGrid, best_ring, consolidated, improve_placement, slowest_s
from takeup.core.arrays import Floats
from takeup.errors import BadInput
from takeup.papers.falcon.mitigation import pipeline_s

FAST, SLOW = 1e-10, 4e-9


def links(num: int, slow: list[tuple[int, int]]) -> Floats:
    """All links alike, but for these."""
    byte_s = np.full((num, num), FAST)
    for one, other in slow:
        byte_s[one, other] = byte_s[other, one] = SLOW
    return byte_s


def grid_of(num_replicas: int, num_stages: int, byte_s: Floats, factors: dict[int, float] | None = None) -> NodeGrid:
    num = num_replicas * num_stages
    places = tuple(tuple(range(row * num_stages, (row + 1) * num_stages)) for row in range(num_replicas))
    every = tuple((factors or {}).get(node, 1.0) for node in range(num))
    return NodeGrid(places, every, byte_s, 6, 0.01, 1_000_000, 500_000_000)


def random_links(num: int, seed: int) -> Floats:
    byte_s = np.random.default_rng(seed).uniform(1e-10, 5e-9, (num, num))
    return (byte_s + byte_s.T) / 2


# Rings ----------------------------------------------------------------------------------------------------------------


@settings(max_examples=25)
@given(st.integers(4, 7), st.integers(0, 10_000))
def test_turning_parts_round_comes_near_the_best_of_all_orders(num: int, seed: int) -> None:
    byte_s = random_links(num, seed)
    best_s = min(slowest_s(order, byte_s) for order in permutations(range(num)))

    assert slowest_s(best_ring(range(num), byte_s), byte_s) == best_s
    assert best_s <= slowest_s(rings._two_opt(tuple(range(num)), byte_s), byte_s) <= slowest_s(range(num), byte_s)


@pytest.mark.parametrize("num", [4, 8, 16, 33])
def test_one_slow_link_is_avoided_by_every_ring_of_four_or_more(num: int) -> None:
    byte_s = links(num, [(2, 3)])

    assert slowest_s(range(num), byte_s) == SLOW
    assert slowest_s(best_ring(range(num), byte_s), byte_s) == FAST


def test_several_slow_links_are_avoided_where_that_is_possible() -> None:
    byte_s = links(12, [(0, 1), (1, 2), (4, 5), (8, 9), (11, 0)])
    order = best_ring(range(12), byte_s)

    assert slowest_s(order, byte_s) == FAST
    assert sorted(order) == list(range(12))


def test_a_good_ring_stays_as_it_is() -> None:
    assert best_ring((3, 1, 2, 0), links(4, [])) == (3, 1, 2, 0)
    assert best_ring((1, 0), links(2, [(0, 1)])) == (1, 0)
    assert slowest_s((0,), links(1, [])) == 0.0


# Grids ----------------------------------------------------------------------------------------------------------------


def best_by_trying_all(grid: NodeGrid) -> float:
    """Over all places of all nodes."""
    num_stages = len(grid.places[0])
    found = []
    for order in permutations(range(len(grid.factors))):
        places = tuple(order[start : start + num_stages] for start in range(0, len(order), num_stages))
        found.append(
            NodeGrid(places, grid.factors, grid.byte_s, 6, 0.01, 1_000_000, 500_000_000, grid._known_s).iteration_s
        )
    return min(found)


@pytest.mark.parametrize("seed", range(3))
def test_exchanges_come_within_a_few_percent_of_trying_all_places(seed: int) -> None:
    random = np.random.default_rng(seed)
    grid = grid_of(2, 3, random_links(6, seed), {int(random.integers(6)): 1.6})
    best_s, found_s = best_by_trying_all(grid), improve_placement(grid, num_iterations=1e9, pause_s=0.0).after_s

    assert best_s * (1 - 1e-9) <= found_s <= 1.05 * best_s


def test_a_slow_link_is_kept_out_of_reductions() -> None:
    grid = grid_of(2, 2, links(4, [(0, 2)]))
    found = improve_placement(grid, num_iterations=1000, pause_s=60.0)

    assert all(set(stage) != {0, 2} for stage in zip(*found.places, strict=True))
    assert found.after_s < 0.5 * found.before_s
    assert found.saving_s == pytest.approx(found.before_s - found.after_s)
    assert found.kept == grid.places
    assert "saves" in found.reason


def test_where_another_order_of_the_ring_helps_nobody_moves() -> None:
    grid = grid_of(4, 2, links(8, [(0, 2)]))
    found = improve_placement(grid, num_iterations=1e6, pause_s=60.0)

    assert found.num_moved == 0
    assert found.after_s < found.before_s
    assert "without a pause" in found.reason
    assert all(slowest_s(ring, grid.byte_s) == FAST for ring in found.rings)


def test_moving_must_pay_off_while_it_lasts() -> None:
    grid = grid_of(2, 2, links(4, [(0, 2)]))

    assert improve_placement(grid, num_iterations=3, pause_s=60.0).num_moved == 0
    assert improve_placement(grid, num_iterations=100, pause_s=60.0).num_moved > 0


def test_a_healthy_grid_is_left_alone() -> None:
    found = improve_placement(grid_of(2, 2, links(4, [])), num_iterations=1e9, pause_s=0.0)

    assert (found.num_moved, found.saving_s, found.reason) == (0, 0.0, "nothing would pay off")


def test_impossible_grids_are_refused() -> None:
    with pytest.raises(BadInput, match="every node, from 0 on, comes once"):
        NodeGrid(((0, 1), (1, 2)), (1.0,) * 4, links(4, []), 4, 0.1, 1, 1)
    with pytest.raises(BadInput, match="for 4 nodes"):
        NodeGrid(((0, 1), (2, 3)), (1.0,) * 3, links(4, []), 4, 0.1, 1, 1)


# Consolidation --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("stages_s", "taken_s"), [((1, 1, 1), 6.0), ((1, 1.5, 1), 7.5 + 0.5), ((1.5, 1.5, 1), 8.5)])
def test_the_figures_of_the_paper(stages_s: tuple[float, ...], taken_s: float) -> None:
    assert pipeline_s(stages_s, 4) == taken_s


@settings(max_examples=30)
@given(st.lists(st.sampled_from([1.0, 1.3, 1.7]), min_size=6, max_size=6))
def test_no_other_grouping_has_a_smaller_sum_of_slowest_devices(factors: list[float]) -> None:
    stages = ((0, 1), (2, 3), (4, 5))

    def total(grouping: tuple[tuple[int, ...], ...]) -> float:
        return pipeline_s([max(factors[device] for device in stage) for stage in grouping], 8)

    every = (((a, b), (c, d), (e, f)) for a, b, c, d, e, f in permutations(range(6)))

    assert total(consolidated(stages, factors)) == pytest.approx(min(map(total, every)))


def test_slow_devices_gather_within_the_pipeline_and_healthy_ones_stay() -> None:
    stages = tuple(tuple(range(4 * stage, 4 * stage + 4)) for stage in range(4))
    factors = [1.6 if device in {0, 5, 9} else 1.0 for device in range(16)]
    found = consolidated(stages, factors)
    slow = [stage for stage, devices in enumerate(found) if any(factors[device] > 1 for device in devices)]

    assert slow in ([1], [2])
    assert sorted(device for stage in found for device in stage) == list(range(16))
