"""The linear program, its slots and its rounding, each against what the paper promises of it."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog

from edge.cells import instances, two_devices
from takeup.edge.model import Instance
from takeup.edge.solvers.partial_plan import SiteQuantities
from takeup.edge.traces.generators import paper_setting, radio_tight_setting
from takeup.edge.validate import violation_of_answer
from takeup.papers.edge.baselines import COMPARED
from takeup.papers.edge.gma import Gma, _choices, _fill_slots, _overlapping_slots, _relaxed, round_matching


@st.composite
def triples(draw: st.DrawFn) -> tuple[list[tuple[int, int, int]], list[float]]:
    sides = draw(st.lists(st.tuples(*[st.integers(0, 3)] * 3), min_size=1, max_size=9, unique=True))
    return sides, draw(st.lists(st.floats(0.1, 10), min_size=len(sides), max_size=len(sides)))


def fractional_worth(sides: list[tuple[int, int, int]], worth_j: list[float]) -> float:
    rows = [[float(side[column] == entry) for side in sides] for column in range(3) for entry in range(4)]
    return -float(linprog([-each for each in worth_j], A_ub=rows, b_ub=np.ones(12), bounds=(0, 1)).fun)


@given(graph=triples())
@settings(max_examples=60, deadline=None)
def test_rounding_keeps_half_of_the_fractional_matching(
    graph: tuple[list[tuple[int, int, int]], list[float]],
) -> None:
    sides, worth_j = graph
    taken = round_matching(np.array(sides), np.array(worth_j)).tolist()

    assert not any(a == b for one, two in combinations(taken, 2) for a, b in zip(sides[one], sides[two], strict=True))
    assert sum(worth_j[each] for each in taken) >= fractional_worth(sides, worth_j) / 2 - 1e-6


def test_a_matching_that_is_whole_already_stays_as_it_is() -> None:
    sides = np.array([[0, 0, 0], [1, 1, 1], [2, 0, 1]])

    assert round_matching(sides, np.array([3.0, 3.0, 5.0])).tolist() == [0, 1]


@given(
    fractions=st.lists(st.floats(0.01, 1.0), min_size=1, max_size=8),
    sizes=st.lists(st.integers(1, 5), min_size=8, max_size=8),
)
def test_slots_hold_one_task_each_and_the_largest_are_poured_first(fractions: list[float], sizes: list[int]) -> None:
    parts = _fill_slots(np.array(fractions), np.array(sizes[: len(fractions)]))
    levels: dict[int, float] = {}
    sizes_in: dict[int, list[int]] = {}
    for choice, pieces in enumerate(parts):
        for slot, part in pieces:
            levels[slot] = levels.get(slot, 0.0) + part
            sizes_in.setdefault(slot, []).append(sizes[choice])

    assert [sum(part for _, part in pieces) for pieces in parts] == pytest.approx(fractions, abs=1e-7)
    assert max(levels.values()) <= 1 + 1e-7
    assert all(min(sizes_in[slot]) >= max(sizes_in[slot + 1]) for slot in sorted(levels)[:-1])


def test_slots_of_both_resources_meet_where_they_lie_beside_each_other() -> None:
    assert _overlapping_slots([(0, 0.25), (1, 0.75)], [(4, 0.5), (5, 0.5)]) == {(0, 4), (1, 4), (1, 5)}
    assert _overlapping_slots([(0, 1.0)], [(7, 1.0)]) == {(0, 7)}


@given(instance=instances())
@settings(max_examples=20, deadline=None)
def test_the_relaxation_keeps_within_its_share_and_chooses_nobody_twice(instance: Instance) -> None:
    site = SiteQuantities(instance)
    choices = _choices(site, site.promising(), 0.5)
    if len(choices.devices) == 0:
        return
    fractions = _relaxed(instance, choices, 0.5)

    assert choices.sizes.max() <= max(1, instance.num_subcarriers // 2)
    assert fractions @ choices.sizes <= 0.5 * instance.num_subcarriers * (1 + 1e-6)
    assert np.bincount(choices.devices, fractions).max() <= 1 + 1e-6
    last_s = instance.deadlines_s[choices.devices].max()
    assert fractions @ instance.run_s[choices.devices] <= 0.5 * last_s * instance.num_cores * (1 + 1e-6)


def test_the_matching_sees_two_small_tasks_where_the_greedy_choice_sees_one_large() -> None:
    cells = [radio_tight_setting(np.random.default_rng([11, seed]), 20, 16) for seed in range(4)]
    savings_j = {name: [COMPARED[name].allocate(cell).saving_j for cell in cells] for name in ("gma", "joint")}

    assert sum(savings_j["gma"]) > 1.02 * sum(savings_j["joint"])


def test_a_cell_in_which_nobody_saves_has_no_matching() -> None:
    answer = COMPARED["gma"].allocate(replace(two_devices(), chip_constant=1e-9))

    assert answer.allocation.num_accepted == 0


def test_tasks_that_do_not_fit_on_the_cpu_together_are_left_out() -> None:
    instance = replace(paper_setting(np.random.default_rng(2), 8, 8), edge_hz=300e6)
    answer = Gma(largest_share=0.9).allocate(instance)

    assert violation_of_answer(instance, answer) is None
    assert 1 <= answer.allocation.num_accepted <= 3
