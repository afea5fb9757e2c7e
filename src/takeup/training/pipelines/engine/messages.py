"""Dedicated connection for one direction of a link, so that compute never blocks behind a slow send.

How it works. Each direction of a link has a process group of two ranks, hence connections that nothing else uses. One
thread starts sends, another waits for their completion: the compute thread only enqueues a tensor, which is kept alive
until it has been sent. On an accelerator the tensor is first copied to pinned host memory on a side stream; received
data is copied back on a side stream, and only the computation that needs it waits for the copy.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from queue import SimpleQueue
from threading import Thread
from typing import Any, Protocol, TypeVar

import torch
import torch.distributed as dist

from takeup.errors import TakeupError
from takeup.training.pipelines.engine.stopwatch import record_event

# A single worker thread with a FIFO queue; a daemon, so it does not keep a failed process alive -----------------------

Result = TypeVar("Result")
QueuedCall = tuple[Future[Any], Callable[[], Any]]


class WorkerThread:
    """Runs submitted calls in order; the thread ends when the worker is garbage-collected."""

    def __init__(self, name: str) -> None:
        self._jobs: SimpleQueue[QueuedCall | None] = SimpleQueue()
        # A daemon: it may be blocked on a failed rank, and must not keep this process from exiting.
        Thread(target=_run_queue, args=(self._jobs,), name=name, daemon=True).start()
        weakref.finalize(self, self._jobs.put, None)

    def submit(self, call: Callable[[], Result]) -> Future[Result]:
        """Enqueue the call; the future holds its result or exception."""
        future: Future[Result] = Future()
        self._jobs.put((future, call))
        return future


def _run_queue(jobs: SimpleQueue[QueuedCall | None]) -> None:
    while (job := jobs.get()) is not None:
        future, call = job
        try:
            future.set_result(call())
        except BaseException as error:
            future.set_exception(error)
        del job, future, call  # release what the call references as soon as it is done


Key = tuple[int, int]  # stage and micro-batch


class Waitable(Protocol):
    """A message in flight."""

    def wait(self, timeout: timedelta, /) -> object:
        """Block until it has arrived; raise on failure or timeout."""


def wait_for(works: Sequence[Waitable], timeout: timedelta, what: str) -> None:
    """Wait for messages; on failure or timeout raise an error that names them."""
    try:
        for work in works:
            work.wait(timeout)
    except RuntimeError as error:
        raise TakeupError(
            f"{what} did not come within {timeout.total_seconds():g} s, or its connection closed; "
            f"look whether that rank still runs, and start the job again ({first_words(error)})"
        ) from error


def first_words(error: BaseException) -> str:
    """First line of a Gloo error message, without its advice."""
    return str(error).partition("\n")[0].partition(". This is")[0]


class PendingReceive:
    """All messages of one receive as a single waitable; `finish` returns when they have arrived."""

    def __init__(self, works: Sequence[Waitable], finish: Callable[[], object]) -> None:
        self._works = works
        self._finish = finish

    def wait(self) -> None:
        """Block until the messages have arrived; raise their error, if any."""
        self._finish()
        for work in self._works:
            if land := getattr(work, "land", None):
                land()


class PendingReceives(dict[Key, list[Any]]):
    """Receives by stage and micro-batch, in the form that PyTorch's runtime keeps them.

    While `eager()` is true, a thread waits for messages and calls `note` for each arrival, with its device event if
    there is one. Receives posted by PyTorch itself complete on a device stream without a host wait; `mark_of` gives
    the event of their arrival.
    """

    def __init__(
        self,
        note: Callable[[int, Any], None],
        what: str,
        timeout: timedelta,
        eager: Callable[[], bool] = lambda: True,
        mark_of: Callable[[Sequence[Any]], Any] = lambda works: None,
    ) -> None:
        super().__init__()
        self._note = note
        self._what = what
        self._timeout = timeout
        self._eager = eager
        self._mark_of = mark_of
        self._worker = WorkerThread("takeup-arrivals")
        self._posted: dict[int, Sequence[Waitable]] = {}

    def posted(self, microbatch: int, works: Sequence[Waitable]) -> None:
        """Register receives posted outside PyTorch's runtime, which will have none for this micro-batch."""
        self._posted[microbatch] = works

    def __setitem__(self, key: Key, works: Sequence[Any]) -> None:
        microbatch = key[1]
        if works:
            self._note(microbatch, self._mark_of(works))
            super().__setitem__(key, list(works))
            return
        works = self._posted.pop(microbatch, ())
        finish = partial(wait_for, works, self._timeout, f"{self._what} {microbatch}")
        if self._eager():
            finish = self._worker.submit(partial(self._receive, finish, works, microbatch)).result  # type: ignore[assignment]
        super().__setitem__(key, [PendingReceive(works, finish)])

    def _receive(self, finish: Callable[[], object], works: Sequence[Waitable], microbatch: int) -> None:
        finish()
        self._note(microbatch, getattr(works[-1], "mark", None) if works else None)


# Dedicated connection for one direction of a link, so that compute never blocks behind a slow send --------------------


def private_group(ranks: Sequence[int], timeout: timedelta) -> dist.ProcessGroup:
    """Create a Gloo process group of these ranks; only they take part in its creation."""
    try:
        group = dist.new_group(list(ranks), timeout=timeout, backend="gloo", use_local_synchronization=True)
    except RuntimeError as error:
        raise TakeupError(
            f"the ranks {list(ranks)} did not connect within {timeout.total_seconds():g} s; let all of them make this "
            f"schedule, each after as many process groups as the others ({first_words(error)})"
        ) from error
    assert isinstance(group, dist.ProcessGroup)
    return group


class DelegateSender:
    """Sends to one peer; `send` does not block, `flush` returns when everything has been sent."""

    def __init__(self, group: dist.ProcessGroup, peer: int, what: str, timeout: timedelta) -> None:
        self._group = group
        self._peer = peer
        self._what = what
        self._timeout = timeout
        self._starts, self._ends = WorkerThread("takeup-sends"), WorkerThread("takeup-sent")
        self._under_way: list[Future[None]] = []
        self._streams = _CopyStream()

    def send(self, tensors: Sequence[torch.Tensor]) -> None:
        """Enqueue these tensors; they must not be modified until `flush`."""
        staged = [self._streams.to_host(tensor) for tensor in tensors]
        begun = self._starts.submit(lambda: [self._begin(each) for each in staged])
        self._under_way.append(self._ends.submit(lambda: wait_for(begun.result(), self._timeout, self._what)))

    def flush(self) -> None:
        """Block until everything has been sent; raise the error of a failed send."""
        under_way, self._under_way = self._under_way, []
        for sent in under_way:
            sent.result()

    def asked(self, timeout: timedelta) -> torch.Tensor:
        """Block until the peer requests missing messages (two integers)."""
        request = torch.zeros(2, dtype=torch.int64)
        work = dist.irecv(request, group=self._group, group_src=self._peer)
        wait_for([work], timeout, "a word of what is missing")  # type: ignore[list-item]
        return request

    def _begin(self, staged: _HostCopy) -> Any:
        if staged.ready is not None:
            staged.ready.synchronize()
        return dist.isend(staged.tensor, group=self._group, group_dst=self._peer)


class DelegateReceiver:
    """Receives from one peer, posted as soon as their buffers exist."""

    def __init__(self, group: dist.ProcessGroup, peer: int) -> None:
        self._group = group
        self._peer = peer
        self._streams = _CopyStream()
        self._asked: list[tuple[torch.Tensor, Any]] = []  # kept alive while they are sent

    def receive(self, tensors: Sequence[torch.Tensor]) -> list[Waitable]:
        return [self._begin(tensor) for tensor in tensors]

    def ask(self, request: torch.Tensor) -> None:
        """Request missing messages (two integers); works even after PyTorch has unregistered the group."""
        self._asked.append((request, self._group.send([request], self._peer, 0)))

    def _begin(self, tensor: torch.Tensor) -> Waitable:
        host = self._streams.room_for(tensor)
        work = dist.irecv(host, group=self._group, group_src=self._peer)
        assert work is not None
        return work if host is tensor else _DeviceReceive(work, host, tensor, self._streams)


# Accelerators ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _HostCopy:
    """A host tensor that can be sent once the event `ready` has completed."""

    tensor: torch.Tensor
    ready: Any = None


class _CopyStream:
    """Copies between accelerator and host on a side stream; host tensors are used without a copy."""

    def __init__(self) -> None:
        self._stream: Any = None

    def to_host(self, tensor: torch.Tensor) -> _HostCopy:
        """Start an asynchronous copy to pinned memory, ordered after the computation of the tensor."""
        host = self.room_for(tensor)
        if host is tensor:
            return _HostCopy(tensor)
        stream = self._of(tensor)
        stream.wait_stream(torch.cuda.current_stream(tensor.device))
        with torch.cuda.stream(stream), torch.no_grad():  # messages are not part of the autograd graph
            host.copy_(tensor, non_blocking=True)
        tensor.record_stream(stream)
        return _HostCopy(host, stream.record_event())

    def to_device(self, host: torch.Tensor, tensor: torch.Tensor, free: Any) -> Any:
        """Start copying to the device after the event `free`; return the event of completion."""
        stream = self._of(tensor)
        stream.wait_event(free)
        with torch.cuda.stream(stream), torch.no_grad():
            tensor.copy_(host, non_blocking=True)
            return record_event()

    def room_for(self, tensor: torch.Tensor) -> torch.Tensor:
        """Host buffer for the tensor: pinned memory, or the tensor itself if it is on the host."""
        return torch.empty_like(tensor, device="cpu", pin_memory=True) if tensor.is_cuda else tensor

    def _of(self, tensor: torch.Tensor) -> Any:
        if self._stream is None:
            self._stream = torch.cuda.Stream(tensor.device)  # type: ignore[no-untyped-call]
        return self._stream


class _DeviceReceive:
    """A message received on the host that must then be copied to the device."""

    def __init__(self, work: Any, host: torch.Tensor, tensor: torch.Tensor, streams: _CopyStream) -> None:
        self._work, self._host, self._tensor, self._streams = work, host, tensor, streams
        self._free = torch.cuda.current_stream(tensor.device).record_event()  # earlier reads of the buffer are done
        self._copied: Any = None

    def wait(self, timeout: timedelta) -> None:
        """Block until it is on the host, then start the copy."""
        self._work.wait(timeout)
        self._copied = self._streams.to_device(self._host, self._tensor, self._free)

    @property
    def mark(self) -> Any:
        return self._copied

    def land(self) -> None:
        """Make the current stream wait for the copy."""
        torch.cuda.current_stream(self._tensor.device).wait_event(self._copied)
