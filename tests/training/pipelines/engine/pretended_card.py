"""As much of an accelerator as the engine uses, on the host: streams do at once what they are given.

Where there is no card, this shows that copies, marks and waits are made in the right places; not that they overlap.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

import torch

from takeup.training.pipelines.engine import adapter, adaptive, messages
from takeup.training.pipelines.engine.stopwatch import RankStopwatch, record_event

__all__ = ["pretend"]


class Event:
    """Happens when it is recorded."""

    def __init__(self, **_: Any) -> None:
        self._at_s = 0.0

    def record(self) -> None:
        self._at_s = time.perf_counter()

    def synchronize(self) -> None:
        assert self._at_s > 0, "nobody recorded it"

    def elapsed_time(self, later: Event) -> float:
        assert self._at_s > 0
        assert later._at_s > 0
        return 1e3 * (later._at_s - self._at_s)


class Stream:
    """Has nothing to wait for."""

    def __init__(self, device: object = None) -> None:
        self.waited: list[object] = []

    def wait_stream(self, other: Stream) -> None:
        self.waited.append(other)

    def wait_event(self, event: Event) -> None:
        event.synchronize()
        self.waited.append(event)

    def record_event(self) -> Event:
        event = Event()
        event.record()
        return event


@contextmanager
def stream(given: Stream) -> Iterator[Stream]:
    yield given


def room_for(streams: object, tensor: torch.Tensor) -> torch.Tensor:
    """Memory of the host for what pretends to be on the card."""
    return torch.empty_like(tensor, requires_grad=False)


@contextmanager
def pretend() -> Iterator[Stream]:
    """Inside, tensors count as being on a card that has no NCCL; what computes there has the stream that is given."""
    computes = Stream()
    places: tuple[tuple[Any, str, Any], ...] = (
        (torch.cuda, "Event", Event),
        (torch.cuda, "Stream", Stream),
        (torch.cuda, "stream", stream),
        (torch.cuda, "current_stream", lambda device=None: computes),
        (torch.Tensor, "record_stream", lambda tensor, on: None),
        (messages._CopyStream, "room_for", room_for),
        (adapter, "carrier_of", lambda stage: "delegates"),
        (adaptive, "_watch_of", lambda stage, count: RankStopwatch(count, record_event, lag=1)),
    )
    with ExitStack() as stack:
        for place, name, ours in places:
            stack.enter_context(mock.patch.object(place, name, ours))
        yield computes
