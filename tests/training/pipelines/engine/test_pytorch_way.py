"""One link: the ordinary way, the delegates, and what happens when the ordinary way breaks."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from threading import Event, Timer
from typing import Any

import pytest

torch = pytest.importorskip("torch")
from takeup.training.pipelines.engine import transport as way_module  # noqa: E402
from takeup.training.pipelines.engine.transport import GOODBYE, LinkEndpoint, say_goodbye_to_all  # noqa: E402

TIMEOUT = timedelta(seconds=20)
BROKEN = RuntimeError("Connection closed by peer. This is typically caused by a remote worker crashing.")


class Work:
    """A message that has come, or never will."""

    def __init__(self, error: Exception | None = None) -> None:
        self._error = error

    def wait(self, timeout: timedelta | None = None) -> None:
        if self._error is not None:
            raise self._error


class Wire:
    """The ordinary way: notes what is sent and received, and breaks when it is told to."""

    def __init__(self) -> None:
        self.sent: list[int] = []
        self.broken = False
        self.refuses = False

    def op(self, number: int) -> Any:
        """An operation of PyTorch on a tensor that holds the number."""
        wire = self

        class Op:
            tensor = torch.tensor([number])
            group, tag, group_peer = None, 0, 1

            def op(self, tensor: Any, **_: Any) -> Work:
                if wire.refuses:
                    raise BROKEN
                wire.sent.append(int(tensor))
                return Work(BROKEN if wire.broken else None)

        return Op()


class Delegates:
    """Both delegates at once: note what they carry, and pass on what the other rank asks for."""

    def __init__(self, asked: tuple[int, int] = (0, 0)) -> None:
        self.sent: list[int] = []
        self.received: list[int] = []
        self.asks: list[list[int]] = []
        self.num_flushed = 0
        self.may_ask, self.has_asked = Event(), Event()
        self._asked = asked

    def send(self, tensors: Sequence[Any]) -> None:
        self.sent += [int(tensor) for tensor in tensors]

    def receive(self, tensors: Sequence[Any]) -> list[Work]:
        self.received += [int(tensor) for tensor in tensors]
        return [Work()]

    def flush(self) -> None:
        self.num_flushed += 1

    def asked(self, timeout: timedelta) -> Any:
        assert self.may_ask.wait(20)
        return torch.tensor(self._asked)

    def ask(self, request: Any) -> None:
        self.asks.append(request.tolist())
        self.has_asked.set()


@pytest.fixture(autouse=True)
def _ways(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits for the neighbours of these tests when the process ends."""
    monkeypatch.setattr(way_module, "_ENDPOINTS", set())


def way(delegates: Delegates, direction: int = 0, number: int = 1) -> LinkEndpoint:
    made = LinkEndpoint(number, direction, (delegates, delegates), TIMEOUT)  # type: ignore[arg-type]
    made.begin()
    return made


def settle(made: LinkEndpoint) -> None:
    """Wait for what is done in the background."""
    made._worker.submit(lambda: None).result(20)


def test_messages_take_the_ordinary_way_unless_there_are_delegates() -> None:
    wire, delegates = Wire(), Delegates()
    made = way(delegates)

    made.send(0, [wire.op(0)])
    made.delegated = True
    made.send(1, [wire.op(1)])
    works = made.receive(0, [wire.op(7)])
    made.flush()

    assert (wire.sent, delegates.sent, delegates.received) == ([0], [1], [7])
    assert (len(works), delegates.num_flushed, made.failed) == (1, 1, False)


def test_after_a_failure_what_the_other_rank_lacks_is_sent_again_and_before_what_comes_later() -> None:
    wire, delegates = Wire(), Delegates(asked=(1, 2))
    made = way(delegates)
    for microbatch in range(4):
        made.send(microbatch, [wire.op(microbatch)])

    made.fail(BROKEN)
    made.send(4, [wire.op(4)])
    before = list(delegates.sent)
    delegates.may_ask.set()
    settle(made)

    assert before == []
    assert delegates.sent == [2, 3, 4]
    assert wire.sent == [0, 1, 2, 3]


@pytest.mark.parametrize("how", ["refuses", "broken"])
def test_a_send_that_fails_is_a_failure_of_the_link(how: str, caplog: pytest.LogCaptureFixture) -> None:
    wire, delegates = Wire(), Delegates(asked=(1, 0))
    made = way(delegates)
    setattr(wire, how, True)

    made.send(0, [wire.op(5)])
    made.flush()
    delegates.may_ask.set()
    settle(made)

    assert made.failed
    assert delegates.sent == [5]
    assert "link 1 failed, its messages take the delegates from now on (Connection closed by peer)" in caplog.text


def test_a_receive_that_fails_asks_once_from_where_to_begin_and_takes_the_delegate() -> None:
    wire, delegates = Wire(), Delegates()
    made = way(delegates)
    fine = made.receive(0, [wire.op(10)])
    wire.broken = True
    lost = [made.receive(microbatch, [wire.op(10 + microbatch)])[0] for microbatch in (1, 2)]

    fine[0].wait(TIMEOUT)
    for work in lost:
        work.wait(TIMEOUT)

    assert made.failed
    assert delegates.asks == [[1, 1]]
    assert delegates.received == [11, 12]


def test_a_receive_that_cannot_even_begin_waits_for_its_turn_with_the_delegate() -> None:
    wire, delegates = Wire(), Delegates()
    made = way(delegates)
    wire.refuses = True
    works = [made.receive(microbatch, [wire.op(microbatch)])[0] for microbatch in range(2)]
    early = list(delegates.received)

    for work in works:
        work.wait(TIMEOUT)

    assert (early, delegates.received, delegates.asks) == ([], [0, 1], [[1, 0]])


def test_iterations_after_a_failure_use_delegates_from_their_beginning() -> None:
    wire, delegates = Wire(), Delegates()
    made = way(delegates)
    wire.refuses = True
    made.receive(0, [wire.op(0)])[0].wait(TIMEOUT)

    made.begin()
    made.receive(0, [wire.op(20)])

    assert delegates.received == [0, 20]
    assert delegates.asks == [[1, 0]]


@pytest.mark.parametrize(("direction", "again"), [(0, []), (1, [3])])
def test_gradients_are_kept_for_one_iteration_more_than_activations(direction: int, again: list[int]) -> None:
    wire, delegates = Wire(), Delegates(asked=(0, 0))
    made = way(delegates, direction)
    made.send(0, [wire.op(3)])

    made.begin()
    made.fail(BROKEN)
    delegates.may_ask.set()
    settle(made)

    assert delegates.sent == again


def test_a_message_that_nobody_takes_is_given_up_when_the_other_rank_says_that_it_lacks_it() -> None:
    delegates, taken = Delegates(asked=(1, 0)), Event()
    made = way(delegates)
    made._sent.append([_Untaken(taken)])

    Timer(0.1, delegates.may_ask.set).start()
    made.flush()

    assert made.failed
    taken.set()


class _Untaken:
    """A message whose receiver has turned to the delegate."""

    def __init__(self, taken: Event) -> None:
        self._taken = taken

    def wait(self, timeout: timedelta) -> None:
        self._taken.wait(timeout.total_seconds())


def test_a_link_fails_only_once(caplog: pytest.LogCaptureFixture) -> None:
    delegates = Delegates()
    delegates.may_ask.set()
    made = way(delegates, number=7)  # links of earlier tests may still speak

    made.fail(BROKEN)
    made.fail(BROKEN)
    settle(made)

    assert caplog.text.count("link 7 failed") == 1


@pytest.mark.parametrize(("direction", "num_kept"), [(0, 0), (1, 1)])
def test_between_iterations_only_gradients_are_held(direction: int, num_kept: int) -> None:
    wire = Wire()
    made = way(Delegates(), direction)
    made.send(0, [wire.op(3)])
    during = len(made._log)

    made.flush()

    assert (during, len(made._log)) == (1, num_kept)


def test_a_rank_that_ends_says_goodbye_once_and_waits_for_the_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    delegates = Delegates(asked=GOODBYE)
    made = way(delegates)
    monkeypatch.setattr(way_module, "ANSWER_S", 20.0)

    Timer(0.1, delegates.may_ask.set).start()
    say_goodbye_to_all()
    say_goodbye_to_all()

    assert made._lacking.done()
    assert delegates.asks == [[-1, -1]]
    assert not made.failed


def test_a_goodbye_is_answered_and_is_no_failure() -> None:
    delegates = Delegates(asked=GOODBYE)
    made = way(delegates)
    wire = Wire()
    made.send(0, [wire.op(3)])

    delegates.may_ask.set()
    made._lacking.result(20)
    made.say_goodbye()

    assert delegates.has_asked.wait(20)  # by this thread or by that which heard
    assert delegates.asks == [[-1, -1]]
    assert not made.failed


def test_nothing_is_sent_again_to_a_rank_that_has_gone() -> None:
    wire, delegates = Wire(), Delegates(asked=GOODBYE)
    made = way(delegates)
    made.send(0, [wire.op(3)])

    made.fail(BROKEN)
    delegates.may_ask.set()
    settle(made)

    assert delegates.sent == []


def test_a_neighbour_that_is_gone_does_not_keep_a_rank_from_ending() -> None:
    delegates = Delegates()
    made = way(delegates)

    def gone(request: Any) -> None:
        raise BROKEN

    delegates.ask = gone  # type: ignore[method-assign]

    assert made.say_goodbye() is made._lacking
