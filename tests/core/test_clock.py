"""Clocks: order, cancelling, the end of a run, and that real time behaves like virtual time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from takeup.core.clock import Clock, Timer, VirtualClock, WallClock
from takeup.errors import BadInput


@dataclass
class FakeTime:
    """Real time that passes only in sleep, in steps no longer than `longest_sleep_s`."""

    now_s: float = 1000.0
    longest_sleep_s: float = float("inf")
    sleeps_s: list[float] = field(default_factory=list)

    def monotonic(self) -> float:
        return self.now_s

    def sleep(self, delay_s: float) -> None:
        self.sleeps_s.append(delay_s)
        self.now_s += min(delay_s, self.longest_sleep_s)


def wall_clock() -> WallClock:
    time = FakeTime()
    return WallClock(time.monotonic, time.sleep)


@pytest.fixture(params=[VirtualClock, wall_clock])
def clock(request: pytest.FixtureRequest) -> Clock:
    made: Clock = request.param()
    return made


def noting(notes: list[tuple[str, float]], name: str, clock: Clock) -> Callable[[], None]:
    return lambda: notes.append((name, clock.now))


def test_actions_run_at_their_times_in_order_of_time(clock: Clock) -> None:
    notes: list[tuple[str, float]] = []
    clock.at(5, noting(notes, "late", clock))
    clock.after(2, noting(notes, "early", clock))
    clock.run()

    assert notes == [("early", 2), ("late", 5)]
    assert clock.now == 5


def test_ties_run_in_the_order_they_were_scheduled(clock: Clock) -> None:
    notes: list[tuple[str, float]] = []
    for name in ("a", "b", "c"):
        clock.at(1, noting(notes, name, clock))
    clock.run()

    assert [name for name, _ in notes] == ["a", "b", "c"]


@given(st.lists(st.integers(0, 5), max_size=30))
def test_a_run_is_a_stable_sort_by_time(times_s: list[int]) -> None:
    clock = VirtualClock()
    ran: list[tuple[int, int]] = []
    for serial, when_s in enumerate(times_s):
        clock.at(when_s, lambda entry=(when_s, serial): ran.append(entry))  # type: ignore[misc]
    clock.run()

    assert ran == sorted(zip(times_s, range(len(times_s)), strict=True), key=lambda entry: entry[0])


def test_an_action_may_schedule_another_for_the_same_time(clock: Clock) -> None:
    notes: list[tuple[str, float]] = []

    def schedule_another() -> None:
        clock.after(0, noting(notes, "next", clock))

    clock.at(3, schedule_another)
    clock.run()

    assert notes == [("next", 3)]


def test_a_cancelled_action_does_not_run_and_does_not_move_time(clock: Clock) -> None:
    notes: list[tuple[str, float]] = []
    clock.at(1, noting(notes, "stays", clock))
    clock.at(9, noting(notes, "goes", clock)).cancel()
    clock.run()

    assert notes == [("stays", 1)]
    assert clock.now == 1


def test_an_action_may_cancel_one_that_is_due_at_the_same_time(clock: Clock) -> None:
    notes: list[tuple[str, float]] = []
    victims: list[Timer] = []

    def cancel_them() -> None:
        for victim in victims:
            victim.cancel()

    clock.at(1, cancel_them)
    victims.append(clock.at(1, noting(notes, "victim", clock)))
    clock.run()

    assert notes == []


def test_run_until_leaves_now_there_and_later_actions_waiting(clock: Clock) -> None:
    notes: list[tuple[str, float]] = []
    for when_s in (1, 4, 5):
        clock.at(when_s, noting(notes, "ran", clock))
    clock.run(until_s=4)

    assert notes == [("ran", 1), ("ran", 4)]
    assert clock.now == 4
    clock.run(until_s=4.5)
    assert clock.now == 4.5
    clock.run()
    assert notes[-1] == ("ran", 5)


def test_run_until_moves_time_when_nothing_is_scheduled(clock: Clock) -> None:
    clock.run(until_s=7)

    assert clock.now == 7


@pytest.mark.parametrize("when_s", [1.9, -1, float("nan"), float("inf")])
def test_what_is_not_a_time_from_now_on_is_refused(clock: Clock, when_s: float) -> None:
    clock.run(until_s=2)

    with pytest.raises(BadInput, match=r"it is 2 s now"):
        clock.at(when_s, lambda: None)
    with pytest.raises(BadInput, match=r"it is 2 s now"):
        clock.run(until_s=when_s)
    with pytest.raises(BadInput, match=r"from now on"):
        clock.after(when_s - 2, lambda: None)


def test_an_exception_reaches_the_caller_and_the_clock_goes_on_afterwards(clock: Clock) -> None:
    notes: list[tuple[str, float]] = []

    def fail() -> None:
        raise ZeroDivisionError

    clock.at(1, fail)
    clock.at(2, noting(notes, "after", clock))
    with pytest.raises(ZeroDivisionError):
        clock.run()
    clock.run()

    assert notes == [("after", 2)]


def test_the_wall_clock_sleeps_until_each_action_and_the_end() -> None:
    time = FakeTime()
    clock = WallClock(time.monotonic, time.sleep)
    clock.at(2, lambda: None)
    clock.at(3, lambda: None)
    clock.run(until_s=10)

    assert time.sleeps_s == [2, 1, 7]


def test_the_wall_clock_sleeps_again_when_a_sleep_ends_early() -> None:
    time = FakeTime(longest_sleep_s=4)
    WallClock(time.monotonic, time.sleep).run(until_s=10)

    assert time.sleeps_s == [10, 6, 2]


def test_a_late_action_sees_the_time_it_was_due_and_the_wall_clock_catches_up() -> None:
    time = FakeTime()
    clock = WallClock(time.monotonic, time.sleep)
    notes: list[tuple[str, float]] = []
    clock.at(1, lambda: time.sleep(5))
    clock.at(2, noting(notes, "late", clock))
    clock.run(until_s=8)

    assert notes == [("late", 2)]
    assert time.now_s == 1008


def test_wall_time_counts_only_while_running() -> None:
    time = FakeTime()
    clock = WallClock(time.monotonic, time.sleep)
    clock.run(until_s=1)
    time.now_s += 100
    clock.run(until_s=3)

    assert time.sleeps_s == [1, 2]


def test_an_interrupted_wait_loses_no_action() -> None:
    notes: list[tuple[str, float]] = []
    interruptions = [KeyboardInterrupt()]
    time = FakeTime()

    def sleep(delay_s: float) -> None:
        if interruptions:
            raise interruptions.pop()
        time.sleep(delay_s)

    clock = WallClock(time.monotonic, sleep)
    clock.at(1, noting(notes, "kept", clock))
    with pytest.raises(KeyboardInterrupt):
        clock.run()
    clock.run()

    assert notes == [("kept", 1)]
