"""When to apply which remedy: least expected loss by trying all plans, and never worse than the published rule."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from takeup.errors import BadInput
from takeup.training.stragglers.remedy.restart import (
    DurationDistribution,
    EscalationPlan,
    Remedy,
    expected_loss_s,
    plan_escalation,
    ski_rental,
)

NOTHING, SWAP, RESTART = Remedy("nothing", 0.0, 0.35), Remedy("swap", 60.0, 0.13), Remedy("restart", 1800.0, 0.0)
REMEDIES = (NOTHING, SWAP, RESTART)

durations = st.lists(st.floats(1.0, 20_000.0), min_size=1, max_size=6)


def law_of(quantiles: list[tuple[float, float]], num: int = 400) -> DurationDistribution:
    """A law from points of its distribution (share, minutes), straight between their logarithms."""
    shares, minutes = zip(*quantiles, strict=True)
    return DurationDistribution(tuple(60 * np.exp(np.interp((np.arange(num) + 0.5) / num, shares, np.log(minutes)))))


LINKS = law_of([(0, 0.1), (0.13, 0.4), (0.22, 2), (0.33, 5), (0.42, 10), (0.52, 20), (0.65, 30), (0.8, 60), (1, 300)])
AT_SCALE = law_of([(0, 11), (0.25, 15), (0.45, 25), (0.62, 30), (0.8, 50), (0.93, 110), (1, 590)])


def every_plan(law: DurationDistribution) -> list[EscalationPlan]:
    """All pairs of moments to apply the second and the third remedy, each possibly never."""
    moments = [0.0, *law.durations_s]
    return [
        EscalationPlan(tuple(sorted([(0.0, NOTHING), (swap_s, SWAP), (restart_s, RESTART)], key=lambda step: step[0])))
        if swap_s < restart_s
        else EscalationPlan(((0.0, NOTHING), (restart_s, RESTART)))
        for swap_s, restart_s in product(moments, moments)
    ]


def due(chosen: EscalationPlan, elapsed_s: float) -> Remedy:
    """The remedy that should be in force this long after the begin of the event."""
    return [remedy for after_s, remedy in chosen.steps if after_s <= elapsed_s][-1]


@given(durations)
def test_no_plan_loses_less_on_average(seen_s: list[float]) -> None:
    law = DurationDistribution(tuple(seen_s))
    best_s = min(expected_loss_s(chosen, law) for chosen in every_plan(law))

    assert expected_loss_s(plan_escalation(REMEDIES, law), law) <= best_s * (1 + 1e-9) + 1e-9


@given(durations)
def test_knowing_the_law_never_costs_more_than_the_published_rule(seen_s: list[float]) -> None:
    law = DurationDistribution(tuple(seen_s))

    assert expected_loss_s(plan_escalation(REMEDIES, law), law) <= expected_loss_s(ski_rental(REMEDIES), law) * (
        1 + 1e-9
    )


@pytest.mark.parametrize("law", [LINKS, AT_SCALE], ids=["links", "at scale"])
def test_a_tenth_less_is_lost_than_by_the_published_rule(law: DurationDistribution) -> None:
    ratio = expected_loss_s(plan_escalation(REMEDIES, law), law) / expected_loss_s(ski_rental(REMEDIES), law)

    assert ratio < 0.9


def test_the_published_rule_moves_on_when_the_loss_has_reached_the_cost() -> None:
    times_s = [after_s for after_s, _ in ski_rental(REMEDIES).steps]

    assert times_s == pytest.approx([0.0, 60 / 0.35, 60 / 0.35 + (1800 - 60) / 0.13])


def test_an_event_that_outlasts_all_that_were_seen_is_treated_as_unknown() -> None:
    chosen = plan_escalation(REMEDIES, DurationDistribution((10.0, 20.0)))

    assert due(chosen, 15.0) == NOTHING
    assert due(chosen, 20.0 + 60 / 0.35 + 1) == SWAP
    assert due(chosen, 1e6) == RESTART


def test_long_events_are_answered_at_once() -> None:
    assert due(plan_escalation(REMEDIES, DurationDistribution((7200.0, 7300.0))), 0.0) == SWAP


@pytest.mark.parametrize("durations_s", [(), (0.0,), (1.0, float("nan")), (float("inf"),)])
def test_a_law_needs_durations(durations_s: tuple[float, ...]) -> None:
    with pytest.raises(BadInput, match="at least one number, all above zero"):
        DurationDistribution(durations_s)


def test_remedies_must_be_ordered_and_sane() -> None:
    with pytest.raises(BadInput, match="from the weakest to the strongest"):
        plan_escalation((SWAP, NOTHING), DurationDistribution((1.0,)))
    with pytest.raises(BadInput, match="cost_s is -1"):
        Remedy("x", -1.0, 0.5)
    with pytest.raises(BadInput, match="loss_share is 2"):
        Remedy("x", 1.0, 2.0)
