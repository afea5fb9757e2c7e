"""Delegates: who hands over a tensor does not wait, the tensor is kept until it has left, and errors are not lost."""

from __future__ import annotations

import gc
import weakref
from datetime import timedelta
from threading import Event, current_thread, main_thread
from typing import Any

import pytest

from takeup.errors import TakeupError

torch = pytest.importorskip("torch")
from takeup.training.pipelines.engine.messages import DelegateReceiver, DelegateSender, private_group  # noqa: E402
from training.pipelines.engine.pretended_card import pretend  # noqa: E402

dist: Any = torch.distributed
TIMEOUT = timedelta(seconds=20)


class Wire:
    """What stands for PyTorch: messages leave when they are told to."""

    def __init__(self) -> None:
        self.begun: list[float] = []
        self.threads: list[Any] = []
        self.may_begin, self.may_leave = Event(), Event()
        self.error: Exception | None = None

    def isend(self, tensor: Any, **_: Any) -> Wire:
        assert self.may_begin.wait(20)
        assert not tensor.requires_grad
        self.begun.append(float(tensor[0]))
        self.threads.append(current_thread())
        return self

    def irecv(self, tensor: Any, **_: Any) -> Wire:
        self.begun.append(float(tensor[0]))
        return self

    def wait(self, timeout: timedelta) -> None:
        assert self.may_leave.wait(20)
        if self.error is not None:
            raise self.error


@pytest.fixture
def wire(monkeypatch: pytest.MonkeyPatch) -> Wire:
    made = Wire()
    monkeypatch.setattr(dist, "isend", made.isend)
    monkeypatch.setattr(dist, "irecv", made.irecv)
    return made


def outgoing() -> DelegateSender:
    return DelegateSender(None, 1, "the end of sending", TIMEOUT)  # type: ignore[arg-type]


def test_who_hands_over_does_not_wait_even_if_sending_blocks(wire: Wire) -> None:
    made = outgoing()

    made.send([torch.ones(2)])
    early = list(wire.begun)
    wire.may_begin.set()
    wire.may_leave.set()
    made.flush()

    assert (early, wire.begun) == ([], [1.0])
    assert wire.threads[0] is not main_thread()


def test_messages_keep_their_order_and_do_not_wait_for_each_other(wire: Wire) -> None:
    made, last = outgoing(), Event()
    wire.may_begin.set()
    for number in range(5):
        made.send([torch.full((2,), float(number))])
    made._starts.submit(last.set)
    assert last.wait(20)
    begun_before_any_left = list(wire.begun)
    wire.may_leave.set()
    made.flush()

    assert begun_before_any_left == [0.0, 1.0, 2.0, 3.0, 4.0]


def test_a_tensor_is_kept_until_it_has_left_and_no_longer(wire: Wire) -> None:
    made, tensor = outgoing(), torch.ones(2)
    gone = weakref.ref(tensor)
    made.send([tensor])
    del tensor
    gc.collect()
    kept = gone() is not None
    wire.may_begin.set()
    wire.may_leave.set()
    made.flush()
    for worker in (made._starts, made._ends):
        worker.submit(lambda: None).result(20)
    gc.collect()

    assert kept
    assert gone() is None


def test_flush_raises_what_went_wrong_and_says_what_it_was(wire: Wire) -> None:
    made = outgoing()
    wire.error = RuntimeError("Connection closed by peer")
    wire.may_begin.set()
    wire.may_leave.set()
    made.send([torch.ones(2)])

    with pytest.raises(TakeupError, match=r"the end of sending did not come .*Connection closed by peer"):
        made.flush()
    made.flush()  # and not twice


def test_receives_on_the_host_go_straight_into_their_tensors(wire: Wire) -> None:
    made = DelegateReceiver(None, 0)  # type: ignore[arg-type]

    works = made.receive([torch.zeros(2), torch.ones(2)])

    assert wire.begun == [0.0, 1.0]
    assert works == [wire, wire]


def test_ranks_that_do_not_meet_are_told_why(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: Any, **__: Any) -> Any:
        raise RuntimeError("Timed out waiting for clients")

    monkeypatch.setattr(dist, "new_group", never)

    with pytest.raises(TakeupError, match=r"the ranks \[2, 3\] did not connect within 20 s; .* as many process groups"):
        private_group([2, 3], TIMEOUT)


def test_what_is_on_a_card_is_copied_behind_what_computes_it_and_without_its_graph(wire: Wire) -> None:
    wire.may_begin.set()
    wire.may_leave.set()
    with pretend() as computes:
        made = outgoing()
        made.send([2 * torch.ones(2, requires_grad=True)])
        made.flush()

        assert wire.begun == [2.0]
        assert made._streams._stream.waited == [computes]


def test_what_arrives_for_a_card_is_copied_when_it_came_and_what_needs_it_waits_for_the_copy(wire: Wire) -> None:
    buffer = torch.zeros(2, requires_grad=True)  # as PyTorch makes them
    with pretend() as computes:
        (work,) = DelegateReceiver(None, 0).receive([buffer])  # type: ignore[arg-type]
        landing: Any = work
        landing._host.fill_(5.0)
        wire.may_leave.set()
        before = buffer.tolist()
        landing.wait(TIMEOUT)
        landing.land()

    assert (before, buffer.tolist()) == ([0.0, 0.0], [5.0, 5.0])
    assert computes.waited == [landing.mark]
