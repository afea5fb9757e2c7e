"""Events around calls on a device, with a device that is played: what is noted, and that events are used again."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs the package torch")

from takeup.training.stragglers.watch import call_ends as cuda  # noqa: E402  it imports torch
from takeup.training.stragglers.watch import hook as hooks  # noqa: E402


class Device:
    """Time passes with every event, and events are done when they are told to be."""

    def __init__(self) -> None:
        self.now_ms = 0.0
        self.is_done = False
        self.num_events = 0

    def event(self) -> Any:
        device, self.num_events = self, self.num_events + 1

        class Event:
            at_ms = 0.0

            def record(self, stream: Any = None) -> None:
                device.now_ms += 2.0
                self.at_ms = device.now_ms

            def query(self) -> bool:
                return device.is_done

            def elapsed_time(self, other: Event) -> float:
                return other.at_ms - self.at_ms

        return Event()


class Hook:
    """Remembers what it is told."""

    def __init__(self) -> None:
        self.is_off = True  # so that no thread looks
        self.noted: list[tuple[int, int]] = []
        self.errors: list[Exception] = []

    def lasted(self, row: int, duration_ns: int) -> None:
        self.noted.append((row, duration_ns))

    def give_up(self, error: Exception) -> None:
        self.errors.append(error)


@pytest.fixture
def played(monkeypatch: pytest.MonkeyPatch) -> tuple[Device, Hook, cuda.CudaCallEnds]:
    device, hook = Device(), Hook()
    monkeypatch.setattr(cuda, "_event", device.event)
    return device, hook, cuda.CudaCallEnds(hook)


def call(ends: cuda.CudaCallEnds, row: int) -> None:
    pair = ends.start()
    assert pair is not None
    ends.under_way(row, pair, "group", None, True)


def test_a_call_is_noted_once_the_device_is_done_with_it(played: tuple[Device, Hook, cuda.CudaCallEnds]) -> None:
    device, hook, ends = played
    call(ends, 5)
    ends.collect()
    assert hook.noted == []

    device.is_done = True
    ends.collect()
    ends.collect()

    assert hook.noted == [(5, 2_000_000)]


def test_events_are_used_again(played: tuple[Device, Hook, cuda.CudaCallEnds]) -> None:
    device, hook, ends = played
    device.is_done = True
    for row in range(10):
        call(ends, row)
        ends.collect()

    assert device.num_events == 2
    assert [row for row, _ in hook.noted] == list(range(10))


def test_a_device_far_behind_is_not_asked_to_remember_everything(
    played: tuple[Device, Hook, cuda.CudaCallEnds], monkeypatch: pytest.MonkeyPatch
) -> None:
    device, _, ends = played
    monkeypatch.setattr(cuda, "MOST_PENDING", 3)
    for row in range(3):
        call(ends, row)

    assert ends.start() is None
    device.is_done = True
    ends.collect()
    assert ends.start() is not None


def test_an_event_that_fails_ends_the_noting(monkeypatch: pytest.MonkeyPatch) -> None:
    hook = Hook()

    def broken() -> Any:
        raise RuntimeError("no device")

    monkeypatch.setattr(cuda, "_event", broken)

    assert cuda.CudaCallEnds(hook).start() is None
    assert [str(error) for error in hook.errors] == ["no device"]


def test_the_thread_that_queries_events_relaxes_its_mode_of_captures(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = list[tuple[str, int]]()

    def library(name: str) -> SimpleNamespace:
        return SimpleNamespace(cuThreadExchangeStreamCaptureMode=lambda mode: asked.append((name, mode._obj.value)))

    monkeypatch.setattr("ctypes.CDLL", library)
    cuda.relax_captures()

    assert asked == [("libcuda.so.1", 2)]


def test_a_call_that_goes_into_a_graph_is_only_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    onward = SimpleNamespace(_handle=SimpleNamespace(redispatch_boxed=lambda keys, *arguments: ("onward", arguments)))
    monkeypatch.setattr(hooks, "_operator", lambda name: onward)
    ends = SimpleNamespace(is_capturing=lambda: True)  # anything else that is asked of it fails
    counted = list[str]()

    hook: Any = SimpleNamespace(captured=lambda: counted.append("captured"))
    kernel = hooks._cuda_kernel(hook, ends, "allreduce_", hooks.RECORDED_OPERATORS["allreduce_"])

    assert kernel(hooks.ONWARD, 1, 2) == ("onward", (1, 2))
    assert counted == ["captured"]


class Groups:
    """A class of process groups whose batches are watched."""

    def _start_coalescing(self, device: str) -> None:
        pass

    def _end_coalescing(self, device: str) -> str:
        return "the work of the batch"


def test_messages_that_are_started_together_end_with_their_batch(
    played: tuple[Device, Hook, cuda.CudaCallEnds], monkeypatch: pytest.MonkeyPatch
) -> None:
    device, hook, ends = played
    awaited, group = list[Any](), Groups()
    monkeypatch.setattr(ends, "_after", awaited.append)
    device.is_done = True
    put_back = ends.watch_batches(Groups)

    group._start_coalescing("cuda")
    for row in (3, 4):
        pair = ends.start()
        assert pair is not None
        ends.under_way(row, pair, group, None, False)
    ends.collect()
    assert (awaited, hook.noted) == ([], [])

    assert group._end_coalescing("cuda") == "the work of the batch"
    ends.collect()
    put_back()
    assert awaited == ["the work of the batch"] * 2
    assert hook.noted == [(3, 4_000_000), (4, 4_000_000)]


class Group:
    """A process group with one backend for the device."""

    def __init__(self, backend: str) -> None:
        self.backend = backend

    def _get_backend(self, device: Any) -> SimpleNamespace:
        if not self.backend:
            raise RuntimeError("no backend for this device")
        return SimpleNamespace(name=lambda: self.backend)


@pytest.mark.parametrize(("backend", "are_on_streams"), [("nccl", True), ("gloo", False), ("", False)])
def test_only_calls_of_nccl_are_timed_on_streams(
    played: tuple[Device, Hook, cuda.CudaCallEnds], backend: str, are_on_streams: bool
) -> None:
    assert played[2].are_on_streams(Group(backend)) is are_on_streams
