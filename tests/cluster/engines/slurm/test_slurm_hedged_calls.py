"""Commands that are given again: the first answer counts, and late ones are waited for."""

from __future__ import annotations

from collections.abc import Sequence
from threading import Event, Lock

import pytest

from takeup.cluster.engines.slurm.commands import HedgedCalls

LONG_S = 30.0  # nobody waits for it, unless something is wrong


class Sleeper:
    """Whose first calls take until somebody wakes them."""

    def __init__(self, num_asleep: int) -> None:
        self.num_asleep, self.num_calls, self.num_ended = num_asleep, 0, 0
        self.woken, self._lock = Event(), Lock()

    def __call__(self, arguments: Sequence[str]) -> str:
        with self._lock:
            number, self.num_calls = self.num_calls, self.num_calls + 1
        if number < self.num_asleep:
            assert self.woken.wait(LONG_S)
        with self._lock:
            self.num_ended += 1
        return f"{arguments[0]} {number}"


def test_who_answers_at_once_is_asked_once() -> None:
    sleeper = Sleeper(0)

    answer = HedgedCalls(sleeper, (LONG_S,)).call(["update"])

    assert (answer, sleeper.num_calls) == ("update 0", 1)


@pytest.mark.parametrize("num_asleep", [1, 2, 3])
def test_the_first_answer_counts_while_others_sleep(num_asleep: int) -> None:
    sleeper = Sleeper(num_asleep)
    insistence = HedgedCalls(sleeper, (*[0.01] * num_asleep, LONG_S))

    answer = insistence.call(["update"])
    num_ended = sleeper.num_ended
    sleeper.woken.set()
    insistence.settle()

    assert (answer, num_ended) == (f"update {num_asleep}", 1)
    assert sleeper.num_ended == num_asleep + 1


def test_nobody_is_asked_more_often_than_there_are_pauses() -> None:
    sleeper = Sleeper(9)
    insistence = HedgedCalls(_waking(sleeper, at_call=3), (0.01, 0.01))

    insistence.call(["update"])
    insistence.settle()

    assert sleeper.num_calls == 3


def test_an_error_is_raised_where_the_command_was_given() -> None:
    def fail(arguments: Sequence[str]) -> str:
        raise ValueError(arguments[0])

    with pytest.raises(ValueError, match="update"):
        HedgedCalls(fail).call(["update"])


def test_what_a_late_answer_says_does_not_matter() -> None:
    woken = Event()
    calls: list[str] = []

    def call(arguments: Sequence[str]) -> str:
        calls.append(arguments[0])
        if len(calls) == 1:
            assert woken.wait(LONG_S)
            raise ValueError("too late")
        return "done"

    insistence = HedgedCalls(call, (0.01, LONG_S))
    answer = insistence.call(["update"])
    woken.set()
    insistence.settle()

    assert answer == "done"


def _waking(sleeper: Sleeper, at_call: int) -> Sleeper:
    """The same, woken as soon as it was called so often."""

    class Waking(Sleeper):
        def __call__(self, arguments: Sequence[str]) -> str:
            if sleeper.num_calls + 1 >= at_call:
                sleeper.woken.set()
            return sleeper(arguments)

    return Waking(0)
