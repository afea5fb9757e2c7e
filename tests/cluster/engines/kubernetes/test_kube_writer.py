"""What nobody waits for is written when there is nothing else to write, or when it has waited for long enough."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from cluster.engines.kubernetes.kube_things import pod
from takeup.cluster.engines.kubernetes import writer as writers
from takeup.cluster.engines.kubernetes.objects import Dialect, Pod, read_pod
from takeup.cluster.engines.kubernetes.writer import PodWriter
from takeup.cluster.model import Grade

LONG_S = 600.0


class Heard:
    """An API server that takes everything down in the order in which it comes."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def request(self, method: str, path: str, *_: Any) -> dict[str, Any]:
        self.lines.append(path.rpartition("/")[2])
        return {}

    def close(self) -> None:
        """Nothing is open."""


@pytest.fixture
def heard() -> Heard:
    return Heard()


@pytest.fixture
def writer(heard: Heard) -> Iterator[PodWriter]:
    writer = PodWriter(heard)  # type: ignore[arg-type]
    yield writer
    writer.close()


def one_pod(name: str) -> Pod:
    body = pod(name)
    body["metadata"]["uid"] = name
    body["metadata"]["creationTimestamp"] = "2026-01-01T00:00:00Z"
    return read_pod(body, dialect=Dialect())


def bind(writer: PodWriter, name: str) -> None:
    assert writer.bind([one_pod(name)], ["n0"], ["n0"], Grade.OPPORTUNISTIC) == [None]


def test_an_event_lets_bindings_go_first(writer: PodWriter, heard: Heard, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writers, "QUIET_S", LONG_S)
    monkeypatch.setattr(writers, "LATEST_S", LONG_S)
    bind(writer, "a")
    writer.later(lambda: heard.lines.append("event"))
    bind(writer, "b")
    writer.close()  # told at the end, whatever else happens

    assert heard.lines == ["binding", "binding", "event"]


def test_an_event_does_not_wait_for_ever(writer: PodWriter, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writers, "QUIET_S", LONG_S)
    monkeypatch.setattr(writers, "LATEST_S", 0.0)
    is_told = threading.Event()
    bind(writer, "a")
    writer.later(is_told.set)

    assert is_told.wait(60)


def test_when_it_is_quiet_events_are_told_at_once(writer: PodWriter, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writers, "QUIET_S", 0.0)
    monkeypatch.setattr(writers, "LATEST_S", LONG_S)
    is_told = threading.Event()
    writer.later(is_told.set)

    assert is_told.wait(60)


def test_an_event_that_fails_stops_no_other(writer: PodWriter, heard: Heard) -> None:
    writer.later(lambda: 1 // 0)
    writer.later(lambda: heard.lines.append("event"))
    writer.close()

    assert heard.lines == ["event"]


def test_closing_twice_is_closing_once(writer: PodWriter) -> None:
    writer.close()
    writer.close()

    with pytest.raises(RuntimeError):
        writer.later(lambda: None)
