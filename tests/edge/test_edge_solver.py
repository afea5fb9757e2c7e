"""Solving with a budget: every answer has a certificate and prices, and more time never gives a worse answer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import count
from pathlib import Path

import numpy as np
import pytest

from takeup.edge import planning
from takeup.edge.model import Instance
from takeup.edge.planning import solve
from takeup.edge.policies import POLICIES, find_policy
from takeup.edge.policies.auto import Auto
from takeup.edge.solvers import market
from takeup.edge.solvers.bounds import InvalidBound, with_bound
from takeup.edge.traces.files import load_instance
from takeup.edge.traces.generators import modern_setting, paper_setting, radio_tight_setting
from takeup.edge.validate import violation_of_answer
from takeup.errors import BadInput, TakeupError, UnknownName


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
    answers = [solve(instance, budget_ms=budget_ms, now=clock(1.0)) for budget_ms in (0.0, 1500.0, 1e12)]
    bounds_j = [answer.bound_j for answer in answers if answer.bound_j is not None]

    assert bounds_j == sorted(bounds_j, reverse=True)
    assert bounds_j[0] > bounds_j[-1] == whole.bound_j


@pytest.mark.parametrize("method", ["greedy", "exact"])
def test_any_policy_gets_a_certificate_and_prices(method: str) -> None:
    instance = paper_setting(np.random.default_rng(4), 7)
    answer = solve(instance, method)

    assert violation_of_answer(instance, answer) is None
    assert answer.policy == method
    assert answer.gap_share is not None
    assert answer.prices is not None


def test_very_many_devices_get_a_certificate() -> None:
    instance = paper_setting(np.random.default_rng(0), 20_000, 2)
    answer = solve(instance, budget_ms=0, now=clock(1.0))

    assert answer.gap_share is not None
    assert 0 <= answer.gap_share < 0.5


def test_mistakes_are_answered_with_the_next_step() -> None:
    instance = paper_setting(np.random.default_rng(0), 2)
    with pytest.raises(UnknownName, match="did you mean 'exact'"):
        solve(instance, "exakt")
    with pytest.raises(BadInput, match="budget_ms is -1; give zero for the quick answer"):
        solve(instance, budget_ms=-1)


def test_a_bound_below_a_plan_is_an_error_that_saves_the_instance(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    instance = paper_setting(np.random.default_rng(4), 7)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(market.Market, "bound_j", 1e-3)

    with pytest.raises(TakeupError, match=r"more than the bound .* saved in"):
        solve(instance, "greedy")
    assert (load_instance(tmp_path / planning.INVALID).gains == instance.gains).all()


def test_a_plan_with_a_valid_bound_keeps_the_smaller_one() -> None:
    instance = paper_setting(np.random.default_rng(4), 7)
    answer = replace(find_policy("greedy").allocate(instance), bound_j=None)
    bounded = with_bound(instance, with_bound(instance, answer, 2 * answer.worth_j), 3 * answer.worth_j)

    assert bounded.bound_j == 2 * answer.worth_j
    with pytest.raises(InvalidBound, match="more than the bound"):
        with_bound(instance, bounded, 0.5 * answer.worth_j)


@pytest.mark.parametrize("make", [paper_setting, radio_tight_setting, modern_setting])
def test_auto_is_never_worse_than_a_policy_that_a_site_can_execute(make: Callable[..., Instance]) -> None:
    instance = make(np.random.default_rng(11), 24)
    auto = solve(instance, budget_ms=1e6, now=clock(1e-3))

    for name, policy in POLICIES.items():
        if name != "auto":
            assert policy.allocate(instance).worth_j <= auto.worth_j * (1 + 3e-6), name


def test_a_subcarrier_without_coverage_is_not_used() -> None:
    instance = radio_tight_setting(np.random.default_rng(3), 6, 8)
    gains = instance.gains.copy()
    gains[:, 0] = 0.0
    gains[2] = 0.0
    answer = solve(replace(instance, gains=gains), budget_ms=0, now=clock(1.0))

    assert violation_of_answer(replace(instance, gains=gains), answer) is None
    assert answer.allocation.powers_w[0] == 0.0
    assert not answer.allocation.offloads[2]
    assert answer.allocation.num_accepted > 0


def test_a_large_present_day_cell_has_a_useful_certificate() -> None:
    instance = modern_setting(np.random.default_rng(3), 60)
    greedy, auto = find_policy("greedy").allocate(instance), solve(instance, budget_ms=100, now=clock(1e-3))

    assert violation_of_answer(instance, auto) is None
    assert auto.worth_j > 1.02 * greedy.worth_j
    assert auto.gap_share is not None
    assert auto.gap_share < 0.08
