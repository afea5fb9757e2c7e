"""Receives are noted when they complete, keep their order, and hand errors to whoever waits."""

from __future__ import annotations

import gc
from datetime import timedelta
from threading import Event, current_thread
from threading import enumerate as all_threads
from typing import Any

import pytest

from takeup.errors import TakeupError
from takeup.training.pipelines.engine.messages import PendingReceives, first_words

PATIENCE_S = 20.0
WHAT, TIMEOUT = "what stage 1 sends, micro-batch", timedelta(seconds=3)


class Message:
    """Comes when it is told to."""

    def __init__(self, error: Exception | None = None) -> None:
        self.came = Event()
        self._error = error

    def wait(self, timeout: timedelta) -> None:
        assert self.came.wait(PATIENCE_S)
        if self._error is not None:
            raise self._error


def post(arrivals: PendingReceives, key: tuple[int, int], *messages: Message) -> None:
    """What happens when the runtime of PyTorch asks for a receive that is begun by us."""
    arrivals.posted(key[1], messages)
    arrivals[key] = []


def noting(noted: list[int], **options: Any) -> PendingReceives:
    """Arrivals that are noted by micro-batch."""
    return PendingReceives(lambda microbatch, mark: noted.append(microbatch), WHAT, TIMEOUT, **options)


def test_a_message_is_noted_when_it_came_although_nobody_waits_for_it() -> None:
    noted = Event()
    arrivals = PendingReceives(lambda microbatch, mark: noted.set() if microbatch == 3 else None, WHAT, TIMEOUT)
    message = Message()
    post(arrivals, (2, 3), message)
    early = noted.is_set()

    message.came.set()

    assert not early
    assert noted.wait(PATIENCE_S)
    assert list(arrivals) == [(2, 3)]


def test_who_waits_gets_the_message_after_it_was_noted() -> None:
    noted: list[int] = []
    arrivals = noting(noted)
    messages = [Message(), Message(), Message()]
    for microbatch, message in enumerate(messages):
        post(arrivals, (0, microbatch), message)
        message.came.set()

    for work in arrivals.pop((0, 2)):
        work.wait()

    assert noted == [0, 1, 2]


def test_a_receive_of_several_tensors_is_noted_after_the_last() -> None:
    noted: list[int] = []
    arrivals = noting(noted)
    first, second = Message(), Message()
    post(arrivals, (0, 0), first, second)
    first.came.set()
    before = list(noted)
    second.came.set()
    arrivals[0, 0][0].wait()

    assert (before, noted) == ([], [0])


def test_an_error_reaches_who_waits_and_later_messages_still_come() -> None:
    noted: list[int] = []
    arrivals = noting(noted)
    broken, whole = Message(RuntimeError("connection closed")), Message()
    post(arrivals, (0, 0), broken)
    post(arrivals, (0, 1), whole)
    broken.came.set()
    whole.came.set()

    with pytest.raises(TakeupError, match=r"what stage 1 sends, micro-batch 0 did not come .* \(connection closed\)"):
        arrivals[0, 0][0].wait()
    arrivals[0, 1][0].wait()
    assert noted == [1]


def test_the_thread_ends_with_the_schedule_it_serves() -> None:
    before = set(all_threads())
    arrivals = noting([])
    started = set(all_threads()) - before

    del arrivals
    gc.collect()
    for thread in started:
        thread.join(PATIENCE_S)

    assert started
    assert not any(thread.is_alive() for thread in started)


def test_a_message_for_an_accelerator_lands_where_it_is_waited_for() -> None:
    landed: list[object] = []

    class Landing(Message):
        def land(self) -> None:
            landed.append(current_thread())

    arrivals = noting([])
    message = Landing()
    message.came.set()
    post(arrivals, (0, 0), message)

    arrivals[0, 0][0].wait()

    assert landed == [current_thread()]


def test_an_iteration_that_is_not_measured_is_waited_for_directly_and_not_noted() -> None:
    noted: list[int] = []
    waiting: list[object] = []

    class Direct(Message):
        def wait(self, timeout: timedelta) -> None:
            waiting.append(current_thread())

    arrivals = noting(noted, eager=lambda: False)
    post(arrivals, (0, 0), Direct())

    arrivals.pop((0, 0))[0].wait()

    assert (waiting, noted) == ([current_thread()], [])


def test_an_error_is_the_same_sentence_when_it_is_waited_for_directly() -> None:
    arrivals, broken = noting([], eager=lambda: False), Message(RuntimeError("connection closed"))
    broken.came.set()
    post(arrivals, (0, 4), broken)

    with pytest.raises(TakeupError, match=r"what stage 1 sends, micro-batch 4 did not come .* \(connection closed\)"):
        arrivals[0, 4][0].wait()


def test_whether_to_wait_ahead_is_decided_again_for_every_message() -> None:
    noted: list[int] = []
    measured = [True, False, True]
    arrivals = noting(noted, eager=measured.pop)
    for microbatch in range(3):
        message = Message()
        message.came.set()
        post(arrivals, (0, microbatch), message)

    for microbatch in range(3):
        arrivals[0, microbatch][0].wait()

    assert noted == [0, 2]


def test_a_message_is_noted_with_the_mark_that_says_when_it_came() -> None:
    class Marked(Message):
        mark = "the end of the copy"

    noted: list[tuple[int, Any]] = []
    arrivals = PendingReceives(lambda microbatch, mark: noted.append((microbatch, mark)), WHAT, TIMEOUT)
    message = Marked()
    message.came.set()
    post(arrivals, (0, 5), Message(), message)
    arrivals[0, 5][0]._works[0].came.set()

    arrivals[0, 5][0].wait()

    assert noted == [(5, "the end of the copy")]


def test_receives_that_pytorch_began_are_its_own_and_marked_at_once() -> None:
    noted: list[tuple[int, Any]] = []
    arrivals = PendingReceives(lambda microbatch, mark: noted.append((microbatch, mark)), WHAT, TIMEOUT, mark_of=len)
    works = [Message(), Message()]

    arrivals[1, 4] = works

    assert noted == [(4, 2)]
    assert arrivals.pop((1, 4)) == works


def test_the_advice_of_gloo_is_left_out() -> None:
    error = RuntimeError("[pair.cc:553] Connection closed by peer. This is typically caused by crashing.\nmore")

    assert first_words(error) == "[pair.cc:553] Connection closed by peer"
