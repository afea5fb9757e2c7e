"""Column generation as a policy, and auto, which puts everything together."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings

from edge.cells import instances
from takeup.edge.model import Instance, Modulation
from takeup.edge.policies.auto import Auto, improvements
from takeup.edge.policies.cg import ColumnGeneration, can_generate
from takeup.edge.policies.exact import Exact
from takeup.edge.policies.joint import JointPlus
from takeup.edge.traces.generators import paper_setting, radio_tight_setting
from takeup.edge.validate import violation_of_answer


@given(instance=instances(most_devices=7, most_subcarriers=4))
@settings(max_examples=15, deadline=None)
def test_columns_are_never_worse_than_the_search_and_the_bound_holds(instance: Instance) -> None:
    answer, best = ColumnGeneration().allocate(instance), Exact().allocate(instance)

    assert violation_of_answer(instance, answer) is None
    assert answer.bound_j is not None
    assert JointPlus().allocate(instance).worth_j <= answer.worth_j <= best.worth_j * (1 + 3e-6) + 1e-12
    assert answer.bound_j >= best.worth_j * (1 - 1e-9)


@pytest.mark.parametrize("num_subcarriers", [12, 40, 70])
def test_many_subcarriers_are_bounded_as_well(num_subcarriers: int) -> None:
    instance = radio_tight_setting(np.random.default_rng(3), 8, num_subcarriers)
    answer = ColumnGeneration().allocate(instance)

    assert violation_of_answer(instance, answer) is None
    assert answer.gap_share is not None
    assert answer.gap_share < 0.05


def test_modulations_that_cannot_be_listed_have_no_columns() -> None:
    wide = radio_tight_setting(np.random.default_rng(3), 8, 12)
    coded = replace(wide, radio=replace(wide.radio, modulations=(Modulation(1.0, 2.0),)))

    assert can_generate(wide)
    assert not can_generate(coded)
    assert can_generate(radio_tight_setting(np.random.default_rng(3), 8, 70))
    assert not can_generate(paper_setting(np.random.default_rng(3), 0))


# Auto -----------------------------------------------------------------------------------------------------------------


@given(instance=instances(most_devices=8))
@settings(max_examples=15, deadline=None)
def test_every_step_is_an_answer_and_none_is_worse_than_the_one_before(instance: Instance) -> None:
    answers = list(improvements(instance))
    worths_j, bounds_j = [each.worth_j for each in answers], [each.bound_j or 0.0 for each in answers]

    assert all(violation_of_answer(instance, answer) is None for answer in answers)
    assert worths_j == sorted(worths_j)
    assert bounds_j == sorted(bounds_j, reverse=True)
    assert all(answer.prices == answers[0].prices is not None for answer in answers)


@pytest.mark.parametrize("seed", range(5))
def test_auto_proves_the_best_plan_of_a_small_cell(seed: int) -> None:
    instance = paper_setting(np.random.default_rng([10, seed]), 9)
    answer = Auto().allocate(instance)

    assert answer.policy == "auto"
    assert answer.gap_share == pytest.approx(0.0, abs=1e-4)


@pytest.mark.parametrize("seed", [1000, 1003, 1007])
def test_auto_is_close_to_its_bound_where_the_radio_is_scarce(seed: int) -> None:
    instance = radio_tight_setting(np.random.default_rng(seed), 20, 16)
    answer = Auto().allocate(instance)

    assert violation_of_answer(instance, answer) is None
    assert answer.gap_share is not None
    assert answer.gap_share < 0.02


@pytest.mark.parametrize("options", [{"contiguous": True}, {"group_sizes": (1, 4)}])
def test_auto_keeps_to_the_groups_that_are_allowed(options: dict[str, object]) -> None:
    instance = replace(radio_tight_setting(np.random.default_rng(5), 10, 12), **options)  # type: ignore[arg-type]

    assert violation_of_answer(instance, Auto().allocate(instance)) is None
