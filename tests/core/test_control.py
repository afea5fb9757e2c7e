"""The control loop: when it steps, what it applies, and that failures neither stop it nor reach the engine."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import pytest

from takeup.core.clock import VirtualClock
from takeup.core.control import ControlLoop, LoopCounters
from takeup.errors import BadInput


@dataclass
class Room:
    """An engine: a number that decisions add to, never beyond nine."""

    level: int = 0
    observed: int = 0

    def observe(self) -> int:
        self.observed += 1
        return self.level

    def apply(self, decision: int) -> None:
        if decision < 0:
            raise ZeroDivisionError("cannot go down")
        if self.level + decision > 9:
            raise BadInput(f"{decision} is too much")
        self.level += decision


@dataclass
class Always:
    """A policy that always decides the same."""

    decisions: Iterable[int] = (1,)
    seen: list[int] = field(default_factory=list)

    def decide(self, state: int) -> Iterable[int]:
        self.seen.append(state)
        return self.decisions


class BreaksHalfWay:
    """A policy that fails after its first decision."""

    def decide(self, state: int) -> Iterator[int]:
        yield 1
        raise KeyError("lost")


def test_it_steps_at_once_and_then_every_period() -> None:
    clock, room, policy = VirtualClock(), Room(), Always()
    ControlLoop(clock, room, policy, period_s=10).start()
    clock.run(until_s=25)

    assert policy.seen == [0, 1, 2]
    assert room.level == 3


def test_it_does_nothing_before_it_is_started() -> None:
    clock, policy = VirtualClock(), Always()
    ControlLoop(clock, Room(), policy, period_s=10)
    clock.run(until_s=25)

    assert policy.seen == []


def test_starting_twice_is_starting_once() -> None:
    clock, policy = VirtualClock(), Always()
    loop = ControlLoop(clock, Room(), policy, period_s=10)
    loop.start()
    loop.start()
    clock.run(until_s=5)

    assert policy.seen == [0]


def test_it_can_be_stopped_and_started_again() -> None:
    clock, policy = VirtualClock(), Always()
    loop = ControlLoop(clock, Room(), policy, period_s=10)
    loop.start()
    clock.run(until_s=5)
    loop.stop()
    clock.run(until_s=50)

    assert policy.seen == [0]
    loop.start()
    clock.run(until_s=55)
    assert policy.seen == [0, 1]


def test_what_happened_to_every_decision_is_counted_and_told() -> None:
    told: list[tuple[int, str]] = []
    loop = ControlLoop(
        VirtualClock(),
        Room(level=5),
        Always([3, 4, -1, 1]),
        1,
        on_decision=lambda decision, outcome: told.append((decision, outcome)),
        on_problem=lambda message: None,
    )
    loop.step()

    assert told == [(3, "applied"), (4, "refused"), (-1, "failed"), (1, "applied")]
    assert loop.counters == LoopCounters(num_rounds=1, num_decisions=4, num_applied=2, num_refused=1, num_failed=1)


def test_a_dry_run_tells_decisions_and_applies_none() -> None:
    told: list[tuple[int, str]] = []
    room = Room()
    loop = ControlLoop(
        VirtualClock(), room, Always([3, -1]), 1, dry_run=True, on_decision=lambda *decision: told.append(decision)
    )
    loop.step()

    assert told == [(3, "dry run"), (-1, "dry run")]
    assert room.level == 0
    assert loop.counters == LoopCounters(num_rounds=1, num_decisions=2)


def test_a_policy_that_fails_half_way_changes_nothing_and_the_loop_goes_on() -> None:
    clock, room = VirtualClock(), Room()
    problems: list[str] = []
    loop = ControlLoop(clock, room, BreaksHalfWay(), 1, on_problem=problems.append)
    loop.start()
    clock.run(until_s=3)

    assert room.level == 0
    assert loop.counters == LoopCounters(num_rounds=4, num_failed_rounds=4)
    assert problems == ["no decisions this round: KeyError: 'lost'"]


def test_an_engine_that_cannot_be_observed_fails_the_round() -> None:
    class Dark(Room):
        def observe(self) -> int:
            raise ConnectionError("gone")

    problems: list[str] = []
    loop = ControlLoop(VirtualClock(), Dark(), Always(), 1, on_problem=problems.append)
    loop.step()

    assert loop.counters.num_failed_rounds == 1
    assert problems == ["no decisions this round: ConnectionError: gone"]


def test_each_distinct_problem_is_told_once() -> None:
    problems: list[str] = []
    loop = ControlLoop(VirtualClock(), Room(), Always([-1, 20, -2, 30]), 1, on_problem=problems.append)
    loop.step()
    loop.step()

    assert problems == [
        "could not apply -1: ZeroDivisionError: cannot go down",
        "refused 20: BadInput: 20 is too much",
        "refused 30: BadInput: 30 is too much",
    ]
    assert loop.counters.num_refused == 4


def test_problems_that_never_repeat_do_not_fill_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("takeup.core.control.MOST_REPORTS", 3)
    problems: list[str] = []
    loop = ControlLoop(VirtualClock(), Room(), Always(range(10, 20)), 1, on_problem=problems.append)
    loop.step()

    assert len(problems) == 3
    assert loop.counters.num_refused == 10


def test_problems_go_to_the_log_unless_asked_otherwise(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger="takeup"):
        ControlLoop(VirtualClock(), Room(), Always([10]), 1).step()

    assert caplog.record_tuples == [("takeup", logging.WARNING, "refused 10: BadInput: 10 is too much")]


def test_a_listener_that_fails_does_not_stop_the_loop() -> None:
    def fail(decision: int, outcome: str) -> None:
        raise ValueError("deaf")

    problems: list[str] = []
    room = Room()
    ControlLoop(VirtualClock(), room, Always([1, 2]), 1, on_decision=fail, on_problem=problems.append).step()

    assert room.level == 3
    assert problems == ["a listener failed: ValueError: deaf"]


def test_an_interrupt_is_not_swallowed() -> None:
    class Interrupted(Always):
        def decide(self, state: int) -> Iterable[int]:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ControlLoop(VirtualClock(), Room(), Interrupted(), 1).step()


@pytest.mark.parametrize("period_s", [0, -1, float("nan")])
def test_a_period_must_be_above_zero(period_s: float) -> None:
    with pytest.raises(BadInput, match="needs one above zero"):
        ControlLoop(VirtualClock(), Room(), Always(), period_s)
