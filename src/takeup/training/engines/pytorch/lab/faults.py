"""Links that are slow on purpose: a message over them leaves later, by a latency, after those before it were served.

All messages between two ranks pass through `send` of their process group, whichever schedule sends them and over
whichever group, so this is where they are held. The one who computes is not kept waiting, unless the link is to behave
as a device with a single hardware queue: there compute waits until the message has left. What a delegate sends comes
from a thread of its own, and keeps nobody waiting.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from takeup.training.engines.pytorch.worker import Worker
from takeup.training.model import Link, Profile

__all__ = ["Late", "Wire", "faulty", "wires_of"]


class Late:
    """A message that has not left yet; can be waited for as one that has."""

    def __init__(self, begun: Future[Any]) -> None:
        self._begun = begun

    def wait(self, timeout: timedelta | None = None) -> Any:
        """Return when the message has left and arrived."""
        limit_s = None if timeout is None else timeout.total_seconds()
        work = self._begun.result(limit_s)
        return work.wait() if timeout is None else work.wait(timeout)


class Wire:
    """One direction of a slow link; with `one_queue`, whoever computes waits for it."""

    def __init__(self, link: Link, *, one_queue: bool = False) -> None:
        self._link = link
        self._one_queue = one_queue
        self._free_s = 0.0
        self._worker = Worker("takeup-slow-link")

    def send(self, begin: Callable[[], Any]) -> Late:
        """Begin the message when it is due; the order of messages is kept."""
        served_s = max(time.monotonic(), self._free_s) + self._link.service_s
        self._free_s = served_s
        begun = self._worker.submit(lambda: _at(served_s + self._link.latency_s, begin))
        if self._one_queue and threading.current_thread() is threading.main_thread():
            begun.result()
        return Late(begun)


def _at(due_s: float, begin: Callable[[], Any]) -> Any:
    time.sleep(max(0.0, due_s - time.monotonic()))
    return begin()


def wires_of(truth: Profile, rank: int) -> dict[int, Wire]:
    """The slow links of a rank, by the rank at their other end."""
    ends = {rank + 1: rank, rank - 1: rank - 1}
    links = {peer: truth.links[link] for peer, link in ends.items() if 0 <= link < len(truth.links)}
    return {peer: Wire(link, one_queue=truth.max_sends == 1) for peer, link in links.items() if link.delay_s > 0}


@contextmanager
def faulty(wires: Mapping[int, Wire]) -> Iterator[None]:
    """Inside, messages to these ranks take their wires."""
    kept, plain = vars(dist.ProcessGroup)["send"], dist.ProcessGroup.send  # as it is kept it binds, as we get it not

    def send(group: dist.ProcessGroup, tensors: Any, peer: int, tag: int) -> Any:
        wire = wires.get(dist.get_global_rank(group, peer))
        if wire is None:
            return plain(group, tensors, peer, tag)
        return wire.send(lambda: plain(group, tensors, peer, tag))

    dist.ProcessGroup.send = send  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        dist.ProcessGroup.send = kept  # type: ignore[method-assign]
