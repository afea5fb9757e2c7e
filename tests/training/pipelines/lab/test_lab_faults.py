"""Slow links of the laboratory: what is late, by how much, who waits for it, and that all is as before afterwards."""

from __future__ import annotations

from concurrent.futures import Future
from datetime import timedelta
from threading import Event
from typing import Any

import pytest

from takeup.training.pipelines.profile import Link, Profile

pytest.importorskip("torch")
import torch.distributed as dist

from support.pipeline_lab import program as faults
from support.pipeline_lab.program import DelayedSend, SlowWire, delayed_sends, slow_wires
from takeup.training.pipelines.engine.messages import WorkerThread

PATIENCE = timedelta(seconds=20)


class Clock:
    """Time that stands still, and notes for how long somebody would have slept."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.slept_s: list[float] = []

    def monotonic(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.slept_s.append(round(seconds, 9))


class Message:
    """One that arrives at once."""

    def wait(self, timeout: timedelta | None = None) -> str:
        return "arrived"


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(faults, "time", made)
    return made


def test_a_latency_delays_every_message_by_as_much(clock: Clock) -> None:
    wire = SlowWire(Link(latency_s=0.5))

    messages = [wire.send(Message) for _ in range(3)]

    assert [message.wait(PATIENCE) for message in messages] == ["arrived"] * 3
    assert clock.slept_s == [0.5, 0.5, 0.5]


def test_a_message_that_finds_the_link_idle_does_not_queue(clock: Clock) -> None:
    wire = SlowWire(Link(latency_s=0.5, service_s=2.0))

    wire.send(Message).wait(PATIENCE)
    clock.now_s += 10
    wire.send(Message).wait(PATIENCE)

    assert clock.slept_s == [2.5, 2.5]


def test_messages_are_served_one_after_the_other(clock: Clock) -> None:
    wire, go = SlowWire(Link(service_s=2.0)), Event()
    held = wire._worker.submit(lambda: go.wait(20))  # nothing leaves before all are handed over

    messages = [wire.send(Message) for _ in range(3)]
    go.set()
    held.result(20)
    for message in messages:
        message.wait(PATIENCE)

    assert clock.slept_s == [2.0, 4.0, 6.0]


def test_who_computes_waits_only_if_there_is_one_queue(clock: Clock) -> None:
    left = []
    one, many = SlowWire(Link(0.5), one_queue=True), SlowWire(Link(0.5))
    go = Event()
    many._worker.submit(lambda: go.wait(20))

    one.send(lambda: left.append("one"))
    many.send(lambda: left.append("many"))
    before = list(left)
    go.set()

    assert before == ["one"]


def test_what_a_delegate_sends_keeps_nobody_waiting(clock: Clock) -> None:
    wire, delegate, go = SlowWire(Link(0.5), one_queue=True), WorkerThread("test"), Event()
    wire._worker.submit(lambda: go.wait(20))

    late = delegate.submit(lambda: wire.send(Message)).result(20)
    go.set()

    assert late.wait(PATIENCE) == "arrived"


def test_a_message_that_never_leaves_is_not_waited_for_longer_than_asked() -> None:
    with pytest.raises(TimeoutError):
        DelayedSend(Future()).wait(timedelta(seconds=0.01))


def test_a_rank_has_wires_to_its_neighbours_where_links_are_slow() -> None:
    truth = Profile.uniform(4, 8, 0.01, {0: Link(0.1), 2: Link(0.0, 0.2)})

    assert [sorted(slow_wires(truth, rank)) for rank in range(4)] == [[1], [0], [3], [2]]


def test_messages_to_other_ranks_and_after_the_fault_go_the_plain_way(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[tuple[str, int]] = []
    monkeypatch.setattr(dist.ProcessGroup, "send", lambda group, tensors, peer, tag: sent.append(("plain", peer)))
    monkeypatch.setattr(dist, "get_global_rank", lambda group, peer: peer)
    kept = vars(dist.ProcessGroup)["send"]

    class Noted(SlowWire):
        def send(self, begin: Any) -> Any:
            sent.append(("late", 0))
            return begin()

    with delayed_sends({1: Noted(Link(0.1))}):
        for peer in (0, 1):
            dist.ProcessGroup.send(object(), [], peer, 0)  # type: ignore[arg-type]

    assert sent == [("plain", 0), ("late", 0), ("plain", 1)]
    assert vars(dist.ProcessGroup)["send"] is kept
