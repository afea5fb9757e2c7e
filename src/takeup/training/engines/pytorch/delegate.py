"""A way of its own for the messages of one link in one direction, so that compute never waits behind a slow send.

How it works. Each direction of a link has a process group of two ranks, hence connections that nothing else uses. One
thread begins sends, another waits for their end: the rank that computes only hands a tensor over, and the tensor is
kept until it has left. On an accelerator the tensor is first copied to pinned memory of the host, on a stream of its
own; what arrives is copied back on such a stream, and only the computation that needs it waits for the copy.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from takeup.errors import TakeupError
from takeup.training.engines.pytorch.arrivals import Waitable, first_words, wait_for
from takeup.training.engines.pytorch.device import new_mark
from takeup.training.engines.pytorch.worker import Worker

__all__ = ["Incoming", "Outgoing", "private_group"]


def private_group(ranks: Sequence[int], timeout: timedelta) -> dist.ProcessGroup:
    """Connections over Gloo among these ranks alone; only they take part in making them."""
    try:
        group = dist.new_group(list(ranks), timeout=timeout, backend="gloo", use_local_synchronization=True)
    except RuntimeError as error:
        raise TakeupError(
            f"the ranks {list(ranks)} did not connect within {timeout.total_seconds():g} s; let all of them make this "
            f"schedule, each after as many process groups as the others ({first_words(error)})"
        ) from error
    assert isinstance(group, dist.ProcessGroup)
    return group


class Outgoing:
    """Sends to one peer; `send` returns at once, `flush` when everything has left."""

    def __init__(self, group: dist.ProcessGroup, peer: int, what: str, timeout: timedelta) -> None:
        self._group = group
        self._peer = peer
        self._what = what
        self._timeout = timeout
        self._starts, self._ends = Worker("takeup-sends"), Worker("takeup-sent")
        self._under_way: list[Future[None]] = []
        self._streams = _Streams()

    def send(self, tensors: Sequence[torch.Tensor]) -> None:
        """Take these tensors over; nobody may write to them until `flush`."""
        staged = [self._streams.to_host(tensor) for tensor in tensors]
        begun = self._starts.submit(lambda: [self._begin(each) for each in staged])
        self._under_way.append(self._ends.submit(lambda: wait_for(begun.result(), self._timeout, self._what)))

    def flush(self) -> None:
        """Return when all has left; raise what went wrong with it."""
        under_way, self._under_way = self._under_way, []
        for sent in under_way:
            sent.result()

    def asked(self, timeout: timedelta) -> torch.Tensor:
        """What the peer asks for, two numbers; waits for it."""
        request = torch.zeros(2, dtype=torch.int64)
        work = dist.irecv(request, group=self._group, group_src=self._peer)
        wait_for([work], timeout, "a word of what is missing")  # type: ignore[list-item]
        return request

    def _begin(self, staged: _Staged) -> Any:
        if staged.ready is not None:
            staged.ready.synchronize()
        return dist.isend(staged.tensor, group=self._group, group_dst=self._peer)


class Incoming:
    """Receives from one peer, begun as soon as there is a buffer for them."""

    def __init__(self, group: dist.ProcessGroup, peer: int) -> None:
        self._group = group
        self._peer = peer
        self._streams = _Streams()
        self._asked: list[tuple[torch.Tensor, Any]] = []  # kept while they are sent

    def receive(self, tensors: Sequence[torch.Tensor]) -> list[Waitable]:
        """Begin to receive into these tensors."""
        return [self._begin(tensor) for tensor in tensors]

    def ask(self, request: torch.Tensor) -> None:
        """Tell the peer what is missing, two numbers; also when PyTorch does not know the group any more."""
        self._asked.append((request, self._group.send([request], self._peer, 0)))

    def _begin(self, tensor: torch.Tensor) -> Waitable:
        host = self._streams.room_for(tensor)
        work = dist.irecv(host, group=self._group, group_src=self._peer)
        assert work is not None
        return work if host is tensor else _Landing(work, host, tensor, self._streams)


# Accelerators ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Staged:
    """A tensor that can be sent from the host once `ready` has happened."""

    tensor: torch.Tensor
    ready: Any = None


class _Streams:
    """Copies between accelerator and host on a stream of their own; tensors of the host stay as they are."""

    def __init__(self) -> None:
        self._stream: Any = None

    def to_host(self, tensor: torch.Tensor) -> _Staged:
        """A copy in pinned memory, begun behind what computes the tensor, and not waited for."""
        host = self.room_for(tensor)
        if host is tensor:
            return _Staged(tensor)
        stream = self._of(tensor)
        stream.wait_stream(torch.cuda.current_stream(tensor.device))
        with torch.cuda.stream(stream), torch.no_grad():  # messages are no part of what is differentiated
            host.copy_(tensor, non_blocking=True)
        tensor.record_stream(stream)
        return _Staged(host, stream.record_event())

    def to_device(self, host: torch.Tensor, tensor: torch.Tensor, free: Any) -> Any:
        """Begin to copy back once the tensor is `free`; the event says when it is done."""
        stream = self._of(tensor)
        stream.wait_event(free)
        with torch.cuda.stream(stream), torch.no_grad():
            tensor.copy_(host, non_blocking=True)
            return new_mark()

    def room_for(self, tensor: torch.Tensor) -> torch.Tensor:
        """Where the host keeps the tensor: pinned memory, or the tensor itself if it is there already."""
        return torch.empty_like(tensor, device="cpu", pin_memory=True) if tensor.is_cuda else tensor

    def _of(self, tensor: torch.Tensor) -> Any:
        if self._stream is None:
            self._stream = torch.cuda.Stream(tensor.device)  # type: ignore[no-untyped-call]
        return self._stream


class _Landing:
    """A message that arrives on the host and then has to be copied."""

    def __init__(self, work: Any, host: torch.Tensor, tensor: torch.Tensor, streams: _Streams) -> None:
        self._work, self._host, self._tensor, self._streams = work, host, tensor, streams
        self._free = torch.cuda.current_stream(tensor.device).record_event()  # what was computed from it before
        self._copied: Any = None

    def wait(self, timeout: timedelta) -> None:
        """Return when it is on the host, with the copy begun."""
        self._work.wait(timeout)
        self._copied = self._streams.to_device(self._host, self._tensor, self._free)

    @property
    def mark(self) -> Any:
        """The end of the copy on the clock of the device."""
        return self._copied

    def land(self) -> None:
        """What is computed from now on waits for the copy."""
        torch.cuda.current_stream(self._tensor.device).wait_event(self._copied)
