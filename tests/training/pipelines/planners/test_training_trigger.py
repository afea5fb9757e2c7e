"""When to change the schedule: a real gain, at once when links become worse, patiently when they recover."""

from __future__ import annotations

import math

import pytest

from takeup.errors import BadInput
from takeup.training.pipelines.planners.adaptation import (
    SwitchDecision,
    SwitchRule,
    SwitchState,
    decide_switch,
    link_delay_s,
    slow_links,
)
from takeup.training.pipelines.profile import Link, Profile

RULE = SwitchRule()
HEALTHY = SwitchState(version=4, expected_s=1.0)


def test_a_slow_link_is_answered_at_once_with_a_new_version() -> None:
    decision = decide_switch(RULE, HEALTHY, current_s=1.5, candidate_s=1.1)

    assert decision.switch
    assert decision.after == SwitchState(5, 1.1)
    assert "26.7%" in decision.reason


def test_a_small_gain_is_not_worth_a_change() -> None:
    decision = decide_switch(RULE, HEALTHY, current_s=1.5, candidate_s=1.46)

    assert not decision.switch
    assert decision.after == HEALTHY


def run(rule: SwitchRule, situation: SwitchState, pairs: list[tuple[float, float]]) -> list[SwitchDecision]:
    decisions = []
    for current_s, candidate_s in pairs:
        decisions.append(decide_switch(rule, situation, current_s, candidate_s))
        situation = decisions[-1].after
    return decisions


def test_a_recovery_is_believed_after_twenty_iterations() -> None:
    slowed = SwitchState(version=1, expected_s=1.4)

    decisions = run(RULE, slowed, [(1.2, 1.0)] * 20)

    assert [decision.switch for decision in decisions] == [False] * 19 + [True]
    assert decisions[-1].after == SwitchState(2, 1.0)


def test_a_relapse_starts_the_wait_again() -> None:
    slowed = SwitchState(version=1, expected_s=1.4)

    decisions = run(RULE, slowed, [(1.2, 1.0)] * 19 + [(1.4, 1.4)] + [(1.2, 1.0)] * 19)

    assert not any(decision.switch for decision in decisions)


def test_a_link_that_flaps_is_planned_for_at_its_worst_and_then_left_alone() -> None:
    worst, calm = (1.5, 1.1), (1.1, 1.0)
    afterwards = (1.1, 1.1)  # the new schedule when the link is slow again

    decisions = run(RULE, HEALTHY, [worst] + [calm, afterwards] * 30)

    assert [decision.switch for decision in decisions] == [True] + [False] * 60


@pytest.mark.parametrize("wrong", [0.0, -1.0, math.nan, math.inf])
def test_predictions_that_cannot_be_are_refused(wrong: float) -> None:
    with pytest.raises(BadInput, match="current_s is"):
        decide_switch(RULE, HEALTHY, wrong, 1.0)
    with pytest.raises(BadInput, match="candidate_s is"):
        decide_switch(RULE, HEALTHY, 1.0, wrong)


def test_delays_are_planned_for_their_upper_quartile() -> None:
    assert link_delay_s(RULE, [0.01, 0.02, 0.03, 0.04, 0.05]) == pytest.approx(0.04)
    assert link_delay_s(SwitchRule(percent=50), [0.01, 0.02, 0.9]) == pytest.approx(0.02)
    with pytest.raises(BadInput, match="no delay was measured"):
        link_delay_s(RULE, [])


def with_delays(*delays_ms: float) -> Profile:
    """Operations of 10 ms, and these latencies."""
    links = {number: Link(delay_ms / 1e3) for number, delay_ms in enumerate(delays_ms)}
    return Profile.uniform(len(delays_ms) + 1, 4, 0.010, links)


def test_a_link_is_slow_if_its_delay_is_felt() -> None:
    assert slow_links(RULE, with_delays(2.4, 2.6, 0.0), frozenset()) == {1}


def test_a_slow_link_must_become_twice_as_fast_to_count_as_healthy() -> None:
    assert slow_links(RULE, with_delays(1.3, 1.3, 1.2), frozenset({0, 2})) == {0}


def test_service_counts_as_delay_and_stages_beside_the_link_set_the_measure() -> None:
    profile = Profile.uniform(3, 4, 0.010, {0: Link(0.0, 0.003), 1: Link(0.002)})

    assert slow_links(RULE, profile, frozenset()) == {0}


def test_no_link_is_slow_enough_for_an_infinite_share() -> None:
    assert slow_links(SwitchRule(slow_share=math.inf), with_delays(1e6), frozenset()) == frozenset()
