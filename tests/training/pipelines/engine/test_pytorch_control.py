"""From shared integers to a schedule: the same on every rank, and changed only if that pays."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest

from takeup.training.pipelines.engine.adaptive import ScheduleControl, profile_of
from takeup.training.pipelines.planners import find_policy
from takeup.training.pipelines.planners.adaptation import SwitchRule
from takeup.training.pipelines.profile import Link, Profile, Stage
from takeup.training.pipelines.schedule import PipelinePlan
from takeup.training.pipelines.timing.evaluation import timeline_of

STAGE = Stage(1e-3, 1e-3, 1e-3, activation_bytes=1, memory_bytes=9)
BLANK = Profile((STAGE,) * 4, (Link(),) * 3, 12)


def shared(latency_ms: int, op_ms: int = 10) -> npt.NDArray[np.int64]:
    """What ranks agree on if all operations take as long and the last link has a latency."""
    return np.array([op_ms] * 12 + [0, 0, 0, 0, latency_ms, 0], np.int64) * 1_000_000


def control(patience: int = 3) -> ScheduleControl:
    start = find_policy("zb_h1").plan(BLANK).schedule
    return ScheduleControl(start, find_policy("adaptra"), BLANK, SwitchRule(patience=patience))


def test_a_profile_has_the_times_in_seconds_and_keeps_its_memory() -> None:
    numbers = np.array([1, 2, 3, 4, 5, 6, 7, 8], np.int64) * 1_000_000
    blank = Profile((STAGE, STAGE), (Link(),), 5, can_split=False)

    profile = profile_of(numbers, blank)

    assert profile.stages == (Stage(1e-3, 2e-3, 3e-3, 1, 9), Stage(4e-3, 5e-3, 6e-3, 1, 9))
    assert profile.links == (Link(7e-3, 8e-3),)
    assert (profile.num_microbatches, profile.can_split) == (5, False)


def test_a_slow_link_changes_the_schedule_at_once() -> None:
    made = control()
    before = made.schedule

    switched = made.consider(10, shared(60))

    assert switched
    assert made.version == 1
    assert [(change.iteration, change.version) for change in made.changes] == [(10, 1)]
    assert made.changes[0].expected_s == timeline_of(made.schedule, made.profile).iteration_s
    assert made.changes[0].expected_s < 0.97 * timeline_of(before, made.profile).iteration_s


def test_a_schedule_that_is_good_stays() -> None:
    made = control()
    made.consider(10, shared(60))
    adopted = made.schedule

    switched = [made.consider(iteration, shared(60)) for iteration in (20, 30, 40, 50)]

    assert switched == [False] * 4
    assert made.schedule is adopted


def test_what_another_rank_computes_from_the_same_integers_is_the_same() -> None:
    here, there = control(), control()
    for iteration, latency_ms in enumerate((0, 60, 60, 5, 5, 5, 5, 90)):
        here.consider(iteration, shared(latency_ms))
        there.consider(iteration, shared(latency_ms))

    assert here.changes == there.changes
    assert here.changes
    assert here.schedule == there.schedule


def test_a_schedule_that_is_given_is_a_version_of_which_nothing_is_expected() -> None:
    made = control()
    made.consider(10, shared(60))
    made.adopt(find_policy("one_f_one_b").plan(BLANK).schedule)

    switched = made.consider(20, shared(60))

    assert switched
    assert made.version == 3
    assert [change.version for change in made.changes] == [1, 3]


def refusing(numbers: list[int]) -> Callable[[int], bool]:
    """Other ranks that say something else, whatever this one says."""

    def same(number: int) -> bool:
        numbers.append(number)
        return False

    return same


class Broken:
    """A planner that fails."""

    name = "broken"

    def plan(self, profile: Profile) -> PipelinePlan:
        raise ZeroDivisionError


def test_if_ranks_plan_differently_all_stay_and_it_is_said(caplog: pytest.LogCaptureFixture) -> None:
    made = control()
    before, numbers = made.schedule, list[int]()

    switched = made.consider(10, shared(60), refusing(numbers))

    assert not switched
    assert (made.schedule, made.version, made.slow, made.changes) == (before, 0, frozenset(), [])
    assert numbers[0] > 0
    assert "after iteration 10 ranks planned differently" in caplog.text
    assert made.consider(20, shared(60))  # nothing is lost


def test_the_same_proposal_has_the_same_number_and_another_has_another() -> None:
    numbers: list[int] = []
    for latency_ms in (60, 60, 0):
        control().consider(10, shared(latency_ms), refusing(numbers))

    assert numbers[0] == numbers[1] != numbers[2]


def test_a_planner_that_fails_leaves_the_schedule_as_it_is(caplog: pytest.LogCaptureFixture) -> None:
    start = find_policy("zb_h1").plan(BLANK).schedule
    made = ScheduleControl(start, Broken(), BLANK, SwitchRule())

    switched = made.consider(10, shared(60))

    assert not switched
    assert (made.schedule, made.version) == (start, 0)
    assert "planning failed; the schedule stays as it is" in caplog.text


@pytest.mark.parametrize("wrong", [-5, 2**62])
def test_times_that_cannot_be_leave_the_schedule_as_it_is(wrong: int) -> None:
    made, numbers = control(), shared(60)
    numbers[3] = wrong

    assert not made.consider(10, numbers)
    assert made.version == 0


def test_links_that_are_slow_are_known_after_the_first_profile() -> None:
    made = control()
    made.consider(10, shared(60))

    assert made.slow == {2}
