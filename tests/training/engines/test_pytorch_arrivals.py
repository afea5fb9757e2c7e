"""Receives are noted when they complete, keep their order, and hand errors to whoever waits."""

from __future__ import annotations

import gc
from datetime import timedelta
from threading import Event, current_thread
from threading import enumerate as all_threads

import pytest

from takeup.errors import TakeupError
from takeup.training.engines.pytorch.arrivals import Arrivals, first_words

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


def test_a_message_is_noted_when_it_came_although_nobody_waits_for_it() -> None:
    noted = Event()
    arrivals = Arrivals(lambda microbatch: noted.set() if microbatch == 3 else None, WHAT, TIMEOUT)
    message = Message()
    arrivals[2, 3] = [message]
    early = noted.is_set()

    message.came.set()

    assert not early
    assert noted.wait(PATIENCE_S)
    assert list(arrivals) == [(2, 3)]


def test_who_waits_gets_the_message_after_it_was_noted() -> None:
    noted: list[int] = []
    arrivals = Arrivals(noted.append, WHAT, TIMEOUT)
    messages = [Message(), Message(), Message()]
    for microbatch, message in enumerate(messages):
        arrivals[0, microbatch] = [message]
        message.came.set()

    for work in arrivals.pop((0, 2)):
        work.wait()

    assert noted == [0, 1, 2]


def test_a_receive_of_several_tensors_is_noted_after_the_last() -> None:
    noted: list[int] = []
    arrivals = Arrivals(noted.append, WHAT, TIMEOUT)
    first, second = Message(), Message()
    arrivals[0, 0] = [first, second]
    first.came.set()
    before = list(noted)
    second.came.set()
    arrivals[0, 0][0].wait()

    assert (before, noted) == ([], [0])


def test_an_error_reaches_who_waits_and_later_messages_still_come() -> None:
    noted: list[int] = []
    arrivals = Arrivals(noted.append, WHAT, TIMEOUT)
    broken, whole = Message(RuntimeError("connection closed")), Message()
    arrivals[0, 0], arrivals[0, 1] = [broken], [whole]
    broken.came.set()
    whole.came.set()

    with pytest.raises(TakeupError, match=r"what stage 1 sends, micro-batch 0 did not come .* \(connection closed\)"):
        arrivals[0, 0][0].wait()
    arrivals[0, 1][0].wait()
    assert noted == [1]


def test_the_thread_ends_with_the_schedule_it_serves() -> None:
    before = set(all_threads())
    arrivals = Arrivals(lambda microbatch: None, WHAT, TIMEOUT)
    started = set(all_threads()) - before

    del arrivals
    gc.collect()
    for thread in started:
        thread.join(PATIENCE_S)

    assert started
    assert not any(thread.is_alive() for thread in started)


def test_a_receive_that_was_begun_elsewhere_is_waited_for_instead() -> None:
    noted: list[int] = []
    arrivals = Arrivals(noted.append, WHAT, TIMEOUT)
    message = Message()
    arrivals.posted(4, [message])
    arrivals[1, 4] = []
    before = list(noted)
    message.came.set()
    arrivals.pop((1, 4))[0].wait()

    assert (before, noted) == ([], [4])


def test_a_message_for_an_accelerator_lands_where_it_is_waited_for() -> None:
    landed: list[object] = []

    class Landing(Message):
        def land(self) -> None:
            landed.append(current_thread())

    arrivals = Arrivals(lambda microbatch: None, WHAT, TIMEOUT)
    message = Landing()
    message.came.set()
    arrivals[0, 0] = [message]

    arrivals[0, 0][0].wait()

    assert landed == [current_thread()]


def test_the_advice_of_gloo_is_left_out() -> None:
    error = RuntimeError("[pair.cc:553] Connection closed by peer. This is typically caused by crashing.\nmore")

    assert first_words(error) == "[pair.cc:553] Connection closed by peer"
