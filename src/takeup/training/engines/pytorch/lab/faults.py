"""Artificially slow links: a message is sent after the service of earlier messages, its own service, and a latency.

All messages between two ranks pass through `send` of their process group, for every schedule and every group, so they
are delayed here. The compute thread is not blocked, unless the link models a device with a single hardware queue: then
compute blocks until the message has been sent. Delegates send from a separate thread and never block compute.
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

from takeup.training.engines.pytorch.worker import WorkerThread
from takeup.training.model.pipeline import Link, Profile


class DelayedSend:
    """A delayed message that has not been sent yet, with the interface of a sent one."""

    def __init__(self, begun: Future[Any]) -> None:
        self._begun = begun

    def wait(self, timeout: timedelta | None = None) -> Any:
        """Block until the message has been sent and has arrived."""
        limit_s = None if timeout is None else timeout.total_seconds()
        work = self._begun.result(limit_s)
        return work.wait() if timeout is None else work.wait(timeout)


class SlowWire:
    """One direction of a slow link; with `one_queue`, sends block the main (compute) thread."""

    def __init__(self, link: Link, *, one_queue: bool = False) -> None:
        self._link = link
        self._one_queue = one_queue
        self._free_s = 0.0
        self._worker = WorkerThread("takeup-slow-link")

    def send(self, begin: Callable[[], Any]) -> DelayedSend:
        """Send the message when it is due, in FIFO order."""
        served_s = max(time.monotonic(), self._free_s) + self._link.service_s
        self._free_s = served_s
        begun = self._worker.submit(lambda: _call_at(served_s + self._link.latency_s, begin))
        if self._one_queue and threading.current_thread() is threading.main_thread():
            begun.result()
        return DelayedSend(begun)


def _call_at(due_s: float, begin: Callable[[], Any]) -> Any:
    time.sleep(max(0.0, due_s - time.monotonic()))
    return begin()


def slow_wires(truth: Profile, rank: int) -> dict[int, SlowWire]:
    """The slow links of a rank, by peer rank."""
    ends = {rank + 1: rank, rank - 1: rank - 1}
    links = {peer: truth.links[link] for peer, link in ends.items() if 0 <= link < len(truth.links)}
    return {peer: SlowWire(link, one_queue=truth.max_sends == 1) for peer, link in links.items() if link.delay_s > 0}


@contextmanager
def delayed_sends(wires: Mapping[int, SlowWire]) -> Iterator[None]:
    """Context in which messages to these ranks are delayed by their wires."""
    kept, plain = vars(dist.ProcessGroup)["send"], dist.ProcessGroup.send  # only the raw attribute binds as a method

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
