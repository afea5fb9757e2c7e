"""The safety coefficient falls after broken promises, rises after quiet hours with a queue, counts nothing twice."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from takeup.cluster.quota.allocator import Feedback, Goal, corrected
from takeup.errors import BadInput

GOAL = Goal(0.9)
TICK_S = 300.0


def lived(start: Feedback, num_ticks: int, num_kept: int = 0, num_broken: int = 0, wait_s: float = 0.0) -> Feedback:
    """Five-minute looks, each with the same new evidence."""
    now_s = start.since_s or 0.0
    for tick in range(1, num_ticks + 1):
        start = corrected(start, GOAL, now_s + tick * TICK_S, num_kept, num_broken, wait_s)
    return start


def test_a_burst_of_evictions_shrinks_the_coefficient() -> None:
    after = corrected(Feedback(), GOAL, 0.0, num_kept=10, num_broken=5, longest_wait_s=0.0)

    assert after.coefficient == pytest.approx(0.1 / (7 / 35))


def test_one_eviction_alone_changes_nothing() -> None:
    assert corrected(Feedback(), GOAL, 0.0, 0, 1, 0.0).coefficient == 1.0


def test_evictions_one_by_one_count_as_much_as_at_once() -> None:
    one_by_one = lived(Feedback(since_s=0.0), 3, num_broken=1)
    at_once = corrected(Feedback(since_s=0.0), GOAL, 900.0, 0, 3, 0.0)

    assert one_by_one.coefficient == pytest.approx(0.1 / (4 / 22))
    assert at_once.coefficient == pytest.approx(0.1 / (5 / 23))
    assert one_by_one.num_broken == 1


def test_an_eviction_is_not_counted_again_at_later_looks() -> None:
    shrunk = corrected(Feedback(since_s=0.0), GOAL, 300.0, 0, 10, 0.0)

    assert shrunk.coefficient < 1.0
    assert lived(shrunk, 48).coefficient == shrunk.coefficient


def test_quiet_hours_with_a_waiting_queue_grow_the_coefficient() -> None:
    after = lived(Feedback(0.5, since_s=0.0), 12, num_kept=3, wait_s=4000.0)

    assert after.coefficient == pytest.approx(0.75)


def test_the_growth_factor_is_one_and_a_half_less_the_rate_over_the_goal() -> None:
    before = Feedback(0.5, num_kept=96, num_broken=4, since_s=0.0)

    assert corrected(before, GOAL, 3600.0, 0, 0, 4000.0).coefficient == pytest.approx(0.5 * (1.5 - 0.04 / 0.1))


@pytest.mark.parametrize(("wait_s", "num_broken"), [(3600.0, 0), (4000.0, 8)])
def test_without_a_long_wait_or_with_a_rate_near_the_goal_it_stays(wait_s: float, num_broken: int) -> None:
    before = Feedback(0.5, num_kept=92, num_broken=num_broken, since_s=0.0)

    assert corrected(before, GOAL, 3600.0, 0, 0, wait_s).coefficient == 0.5


def test_it_does_not_grow_before_a_period_is_over() -> None:
    assert lived(Feedback(0.5, since_s=0.0), 11, num_kept=3, wait_s=4000.0).coefficient == 0.5


def test_waiting_without_evidence_leads_back_to_the_forecast_and_not_beyond() -> None:
    assert lived(Feedback(0.5, since_s=0.0), 12, wait_s=4000.0).coefficient == pytest.approx(0.75)
    assert lived(Feedback(0.5, since_s=0.0), 120, wait_s=4000.0).coefficient == 1.0


def test_promises_that_are_all_kept_while_others_wait_lead_beyond_the_forecast_hour_by_hour() -> None:
    an_hour, six_hours = (lived(Feedback(since_s=0.0), 12 * hours, num_kept=3, wait_s=4000.0) for hours in (1, 6))

    assert an_hour.coefficient == pytest.approx(1.5)
    assert six_hours.coefficient == 4.0


def test_after_growth_broken_promises_lead_back() -> None:
    grown = lived(Feedback(since_s=0.0), 24, num_kept=3, wait_s=4000.0)
    burst = corrected(grown, GOAL, 9000.0, num_kept=0, num_broken=20, longest_wait_s=4000.0)

    assert grown.coefficient == pytest.approx(1.5**2)
    assert burst.coefficient == pytest.approx(1.5**2 * 0.1 / (22 / 40))


def test_evidence_is_forgotten_after_the_window() -> None:
    before = Feedback(1.0, num_kept=50, num_broken=1, since_s=0.0)
    after = corrected(before, GOAL, 4 * 3600.0, 0, 0, 0.0)

    assert (after.num_kept, after.num_broken, after.since_s) == (0, 0, 4 * 3600.0)


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50), st.floats(0, 1e5)), max_size=80))
def test_the_coefficient_stays_between_its_bounds(looks: list[tuple[int, int, float]]) -> None:
    feedback = Feedback()
    for tick, (kept, broken, wait_s) in enumerate(looks):
        feedback = corrected(feedback, GOAL, tick * TICK_S, kept, broken, wait_s)

        assert 0.25 <= feedback.coefficient <= 4.0


@given(st.integers(0, 200), st.integers(0, 200), st.sampled_from([0.8, 0.9, 0.99]))
def test_more_broken_promises_never_leave_a_larger_coefficient(kept: int, broken: int, probability: float) -> None:
    goal = Goal(probability)
    fewer = corrected(Feedback(), goal, 0.0, kept, broken, 0.0)
    more = corrected(Feedback(), goal, 0.0, kept, broken + 1, 0.0)

    assert more.coefficient <= fewer.coefficient


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 3)), min_size=1, max_size=60))
def test_every_promise_is_in_one_correction_or_still_in_hand(looks: list[tuple[int, int]]) -> None:
    feedback, used = Feedback(since_s=0.0), 0
    for tick, (kept, broken) in enumerate(looks, start=1):
        in_hand = feedback.num_kept + feedback.num_broken + kept + broken
        feedback = corrected(feedback, GOAL, tick * TICK_S, kept, broken, 0.0)
        left = feedback.num_kept + feedback.num_broken
        used += in_hand - left

        assert left in (0, in_hand)
    assert used + feedback.num_kept + feedback.num_broken == sum(kept + broken for kept, broken in looks)


@pytest.mark.parametrize("probability", [0.0, 1.0, -1.0, float("nan")])
def test_a_goal_that_cannot_be_reached_is_refused(probability: float) -> None:
    with pytest.raises(BadInput, match="choose one between 0 and 1"):
        Goal(probability)
