"""Column generation as a policy: never worse than the search, with a bound that holds."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings

from edge.cells import instances
from takeup.edge.model import Instance, Modulation
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
