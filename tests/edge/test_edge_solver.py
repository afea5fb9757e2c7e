"""Solving with a budget: every answer has a certificate and prices, and more time never gives a worse answer."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count

import numpy as np
import pytest

from takeup.edge.planning import solve
from takeup.edge.policies.auto import Auto
from takeup.edge.traces.generators import paper_setting, radio_tight_setting
from takeup.edge.validate import violation_of_answer
from takeup.errors import BadInput, UnknownName


def clock(step_s: float) -> Callable[[], float]:
    """A clock that moves on whenever it is read."""
    ticks = count()
    return lambda: next(ticks) * step_s


def test_without_a_budget_the_first_answer_has_a_certificate_already() -> None:
    instance = paper_setting(np.random.default_rng(3), 8)
    answer = solve(instance, budget_ms=0, now=clock(1.0))

    assert violation_of_answer(instance, answer) is None
    assert answer.gap_share is not None
    assert answer.prices is not None


def test_with_time_enough_the_answer_is_the_one_of_the_policy() -> None:
    instance = radio_tight_setting(np.random.default_rng(1005), 12, 6, 4e9)
    quick, slow = solve(instance, budget_ms=0, now=clock(1.0)), solve(instance, budget_ms=1e9, now=clock(1.0))
    auto = Auto().allocate(instance)

    assert slow.worth_j == auto.worth_j
    assert slow.bound_j == auto.bound_j
    assert slow.worth_j >= quick.worth_j
    assert slow.gap_share is not None
    assert slow.gap_share < 3e-6


def test_the_budget_ends_before_the_last_step() -> None:
    instance = radio_tight_setting(np.random.default_rng(0), 14, 12)
    whole = Auto().allocate(instance)
    answers = [solve(instance, budget_ms=budget_ms, now=clock(1.0)) for budget_ms in (0.0, 1500.0, 1e6)]
    bounds_j = [answer.bound_j for answer in answers if answer.bound_j is not None]

    assert bounds_j == sorted(bounds_j, reverse=True)
    assert bounds_j[0] > bounds_j[-1] == whole.bound_j


@pytest.mark.parametrize("method", ["local", "joint", "exact"])
def test_any_policy_gets_a_certificate_and_prices(method: str) -> None:
    instance = paper_setting(np.random.default_rng(4), 7)
    answer = solve(instance, method)

    assert violation_of_answer(instance, answer) is None
    assert answer.policy == method
    assert answer.gap_share is not None
    assert answer.prices is not None


def test_the_certificate_of_local_is_that_everything_may_be_missing() -> None:
    assert solve(paper_setting(np.random.default_rng(4), 7), "local").gap_share == 1.0


def test_very_many_devices_get_a_certificate() -> None:
    instance = paper_setting(np.random.default_rng(0), 200_000, 2)
    answer = solve(instance, budget_ms=0, now=clock(1.0))

    assert answer.gap_share is not None
    assert 0 <= answer.gap_share < 0.5


def test_mistakes_are_answered_with_the_next_step() -> None:
    instance = paper_setting(np.random.default_rng(0), 2)
    with pytest.raises(UnknownName, match="did you mean 'exact'"):
        solve(instance, "exakt")
    with pytest.raises(BadInput, match="budget_ms is -1; give zero for the quick answer"):
        solve(instance, budget_ms=-1)
